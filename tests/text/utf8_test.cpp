#include "text/utf8.h"

#include <gtest/gtest.h>

namespace dgemma::text {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8, AcceptsEveryScalarValueAndReadsItBack) {
    std::string all;
    for (char32_t code = 0; code <= 0x10FFFF; ++code) {
        if (code < 0xD800 || code > 0xDFFF) append_utf8(all, code);
    }
    ASSERT_TRUE(is_valid_utf8(all));
    EXPECT_EQ(sanitize_utf8(all), all);
    std::size_t pos = 0;
    for (char32_t code = 0; code <= 0x10FFFF; ++code) {
        if (code < 0xD800 || code > 0xDFFF) {
            ASSERT_EQ(next_code_point(all, pos), code);
        }
    }
    EXPECT_EQ(pos, all.size());
}

TEST(Utf8, WritesReplacementForWhatIsNotAScalarValue) {
    std::string out;
    append_utf8(out, 0xD800);
    append_utf8(out, 0x110000);
    EXPECT_EQ(out, kBad + kBad);
}

TEST(Utf8, ReplacesEachMaximalBadSubpart) {
    const std::pair<std::string, std::string> cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"\xE2\x80", kBad},
        {"\xE2\x80"
         "A",
         kBad + "A"},
        {"\xF0\x9F\x98", kBad},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", kBad + "\xF0\x9F\x98\x80"},
        {"\x80\xBF", kBad + kBad},
        {"\xC0\x80", kBad + kBad},             // overlong
        {"\xE0\x9F\x80", kBad + kBad + kBad},  // overlong
        {"\xED\xA0\x80", kBad + kBad + kBad},  // a surrogate
        {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},
        {"\xF5", kBad},
        {"\xFF\xFE", kBad + kBad},
        {"a\xC3", "a" + kBad},
        {"\xC3(", kBad + "("},
        // The example of the Unicode standard, table 3-8.
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
         "a" + kBad + kBad + kBad + "b" + kBad + "c" + kBad + kBad + "d"},
    };
    for (const auto& [bytes, expected] : cases) {
        EXPECT_EQ(sanitize_utf8(bytes), expected);
        EXPECT_TRUE(is_valid_utf8(sanitize_utf8(bytes)));
        EXPECT_EQ(is_valid_utf8(bytes), bytes == expected);
    }
}

TEST(Utf8, RewritesLoneSurrogateEscapes) {
    EXPECT_EQ(replace_lone_surrogates(R"("\ud83d\ude00")"), R"("\ud83d\ude00")");
    EXPECT_EQ(replace_lone_surrogates(R"("\uD800")"), R"("\ufffd")");
    EXPECT_EQ(replace_lone_surrogates(R"("\ude00\ud83d")"), R"("\ufffd\ufffd")");
    EXPECT_EQ(replace_lone_surrogates(R"("\ud83d\ud83d\ude00")"), R"("\ufffd\ud83d\ude00")");
    EXPECT_EQ(replace_lone_surrogates(R"("\\ud800 \n\u0041")"), R"("\\ud800 \n\u0041")");
    EXPECT_EQ(replace_lone_surrogates(R"("\ud8)"), R"("\ud8)");
    EXPECT_EQ(replace_lone_surrogates("\\"), "\\");
}

}  // namespace
}  // namespace dgemma::text
