#include "text/value.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "text/python_text.h"
#include "text/template_value.h"

namespace dgemma::text {
namespace {

using Type = Value::Type;

Value parsed(std::string_view text) {
    Result<Value> value = parse_json(text, "test");
    if (!value) throw std::runtime_error(value.error().message);
    return std::move(value).value();
}

TEST(Json, KeepsIntegersExactAndApartFromFloats) {
    EXPECT_EQ(parsed("1").type(), Type::integer);
    EXPECT_EQ(parsed("1.0").type(), Type::number);
    EXPECT_EQ(parsed("1e2").type(), Type::number);
    EXPECT_EQ(parsed("-0").as_integer().digits, "0");
    const std::string huge(400, '9');
    EXPECT_EQ(parsed("[" + huge + "]").as_array()[0].as_integer().digits, huge);
    EXPECT_EQ(to_json(parsed("[12345678901234567890,-9007199254740993,1.0]")),
              "[12345678901234567890,-9007199254740993,1.0]");
    EXPECT_TRUE(std::isinf(parsed("1e999").as_number()));
    EXPECT_EQ(parsed("1e-999").as_number(), 0);
    EXPECT_EQ(parsed("0e99999999999999999999").as_number(), 0);
    EXPECT_EQ(to_json(parsed("-1e999")), "-1e999");
}

TEST(Json, KeepsTheOrderOfKeysAndTheLastOfEqualOnes) {
    EXPECT_EQ(to_json(parsed(R"({"b": 1, "a": 2, "b": 3})")), R"({"b":3,"a":2})");
    std::string wide = "{";
    for (int i = 0; i < 50000; ++i) wide += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
    wide.back() = '}';
    EXPECT_EQ(parsed(wide).as_object().size(), 50000U);
}

TEST(Json, ReplacesWhatIsNoUnicode) {
    EXPECT_EQ(parsed(R"("\ud800")").as_string(), "\uFFFD");
    EXPECT_EQ(parsed(R"("\ud800\ud83d\ude00")").as_string(), "\uFFFD\U0001F600");
    EXPECT_EQ(parsed(R"({"\udc00": "x"})").as_object()[0].key, "\uFFFD");
    EXPECT_EQ(parsed("\"a\xFF\xC3\"").as_string(), "a\uFFFD\uFFFD");
    EXPECT_EQ(parsed("\xEF\xBB\xBF[1]").as_array().size(), 1U);
}

TEST(Json, WritesOneLineForEveryReader) {
    EXPECT_EQ(to_json(Value::string(std::string("\"\\\n\r\t\0\x7F", 7))), R"("\"\\\n\r\t\u0000\u007f")");
    EXPECT_EQ(to_json(Value::string("\u2028\u2029\u0085\u0084é")), "\"\\u2028\\u2029\\u0085\u0084é\"");
}

TEST(Json, RefusesWithThePlace) {
    for (const char* text :
         {"",      "  ",      "[1",  "{\"a\":1", "{\"a\":1,}", "[1,]",      "[1 2]", "{\"a\" 1}",
          "[1]]",  "1 2",     "01",  "-",        "1.",         ".5",        "nul",   "'a'",
          "{1:2}", "\"\\x\"", "\"a", "[1,2]x",   "NaN",        "[\"a\tb\"]"}) {
        EXPECT_FALSE(parse_json(text, "test").ok()) << text;
    }
    EXPECT_EQ(parse_json("{\"a\":\n  tru}", "tools.json").error().message,
              "tools.json is not valid JSON at line 2, column 3: a word that is no value (strings need "
              "double quotes)");
}

TEST(Json, RefusesDeepNesting) {
    const auto nested = [](int depth) {
        return std::string(static_cast<std::size_t>(depth), '[') +
               std::string(static_cast<std::size_t>(depth), ']');
    };
    EXPECT_TRUE(parse_json(nested(max_json_depth), "test").ok());
    EXPECT_FALSE(parse_json(nested(max_json_depth + 1), "test").ok());
    EXPECT_FALSE(parse_json(nested(200000), "test").ok());
    EXPECT_FALSE(parse_json(std::string(200000, '['), "test").ok());
}

TEST(Floats, AreWrittenAsPythonWritesThem) {
    EXPECT_EQ(float_text(1), "1.0");
    EXPECT_EQ(float_text(-0.0), "-0.0");
    EXPECT_EQ(float_text(0.1), "0.1");
    EXPECT_EQ(float_text(1e15), "1000000000000000.0");
    EXPECT_EQ(float_text(1e16), "1e+16");
    EXPECT_EQ(float_text(123456789012345680.0), "1.2345678901234568e+17");
    EXPECT_EQ(float_text(0.0001), "0.0001");
    EXPECT_EQ(float_text(0.00001), "1e-05");
    EXPECT_EQ(float_text(5e-324), "5e-324");
    EXPECT_EQ(float_text(1.5e300), "1.5e+300");
    EXPECT_EQ(float_text(123456789.123), "123456789.123");
    EXPECT_EQ(float_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(PythonText, StripsPythonsWhiteSpaceOnly) {
    EXPECT_EQ(
        python_strip("\x1C\x1F \t\u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000x y\u3000\n"),
        "x y");
    EXPECT_EQ(python_strip("\u200Bx\uFEFF"), "\u200Bx\uFEFF");
    EXPECT_EQ(python_strip(" \u3000 "), "");
}

TEST(PythonText, MapsCaseInFull) {
    EXPECT_EQ(python_upper("straße ŉ ﬃ ΐ ᾳ ᾇ ǆ"), "STRASSE \u02BCN FFI \u0399\u0308\u0301 ΑΙ \u1F0FΙ Ǆ");
    EXPECT_EQ(python_lower("İ ΟΔΟΣ ΑΣΑ Σ ΑΣ. ΑΣ.Α Ǆ"), "i\u0307 οδος ασα σ ας. ασ.α ǆ");
}

TEST(PythonText, QuotesAsReprDoes) {
    EXPECT_EQ(python_repr("a"), "'a'");
    EXPECT_EQ(python_repr("it's"), "\"it's\"");
    EXPECT_EQ(python_repr("'\""), R"('\'"')");
    EXPECT_EQ(python_repr(std::string("\\\n\0\x7F é", 7)), "'\\\\\\n\\x00\\x7f é'");
    EXPECT_EQ(python_repr("\u00A0\u2028\U000E0001"), R"('\xa0\u2028\U000e0001')");
}

TEST(TemplateValues, PrintAsPythonPrintsThem) {
    const Value value = parsed(R"([null, true, 1, 1.0, "a'b", {"k": [false]}, []])");
    EXPECT_EQ(text_of(&value), R"([None, True, 1, 1.0, "a'b", {'k': [False]}, []])");
    EXPECT_EQ(text_of(nullptr), "");
}

TEST(TemplateValues, CompareAsPythonComparesThem) {
    const auto equal = [](std::string_view a, std::string_view b) {
        const Value left = parsed(a), right = parsed(b);
        return python_equal(&left, &right);
    };
    EXPECT_TRUE(equal("1", "1.0"));
    EXPECT_TRUE(equal("true", "1"));
    EXPECT_TRUE(equal("-0.0", "0"));
    EXPECT_TRUE(equal("1e22", "10000000000000000000000"));
    EXPECT_FALSE(equal("9007199254740993", "9007199254740992.0"));
    EXPECT_TRUE(equal(R"({"a": 1, "b": [2]})", R"({"b": [2.0], "a": true})"));
    EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": 1, "b": 2})"));
    EXPECT_FALSE(equal("null", "false"));
    EXPECT_FALSE(equal("\"1\"", "1"));
}

TEST(TemplateValues, SortKeysByLowerCaseAndKeepTies) {
    const Value object = parsed(R"({"b":0,"B":0,"_a":0,"A":0,"a":0,"10":0,"9":0,"é":0,"É":0,"z":0})");
    std::string order;
    for (const Member* member : sorted_members(object)) order += member->key + " ";
    EXPECT_EQ(order, "10 9 _a A a b B z é É ");
}

}  // namespace
}  // namespace dgemma::text
