#include "server/schema.h"

#include <gtest/gtest.h>

namespace dgemma::server {
namespace {

Value json(std::string_view text) {
    Result<Value> value = text::parse_json(text, "test");
    EXPECT_TRUE(value.ok()) << text;
    return std::move(value).value();
}

std::string problem(std::string_view schema, std::string_view value) {
    const Status status = check_value(json(schema), json(value), "it");
    return status ? "" : status.error().message;
}

TEST(Schema, ChecksTypes) {
    EXPECT_EQ(problem(R"({"type":"string"})", R"("a")"), "");
    EXPECT_EQ(problem(R"({"type":"string"})", "1"), "it must be of type string, not an integer");
    EXPECT_EQ(problem(R"({"type":"STRING"})", R"("a")"), "");
    EXPECT_EQ(problem(R"({"type":"integer"})", "1.0"), "");
    EXPECT_NE(problem(R"({"type":"integer"})", "1.5"), "");
    EXPECT_EQ(problem(R"({"type":"number"})", "3"), "");
    EXPECT_EQ(problem(R"({"type":["string","null"]})", "null"), "");
    EXPECT_NE(problem(R"({"type":["string","null"]})", "1"), "");
    EXPECT_EQ(problem(R"({"type":"string","nullable":true})", "null"), "");
    EXPECT_EQ(problem("true", "1"), "");
}

TEST(Schema, ChecksMembersAndItems) {
    constexpr std::string_view schema =
        R"({"type":"object","required":["a"],"additionalProperties":false,"properties":
        {"a":{"type":"integer","minimum":1,"maximum":5},"b":{"type":"array","items":{"enum":["x","y"]},"maxItems":2}}})";
    EXPECT_EQ(problem(schema, R"({"a":1,"b":["x"]})"), "");
    EXPECT_EQ(problem(schema, R"({"b":[]})"), "it lacks a");
    EXPECT_EQ(problem(schema, R"({"a":6})"), "it.a is above maximum 5");
    EXPECT_EQ(problem(schema, R"({"a":1,"c":1})"), "it.c is not declared");
    EXPECT_EQ(problem(schema, R"({"a":1,"b":["z"]})"), R"(it.b[0] must be one of ["x","y"])");
    EXPECT_EQ(problem(schema, R"({"a":1,"b":["x","x","x"]})"), "it.b is above maxItems 2");
}

TEST(Schema, ChecksCombinations) {
    EXPECT_EQ(problem(R"({"anyOf":[{"type":"string"},{"type":"integer"}]})", "1"), "");
    EXPECT_EQ(problem(R"({"anyOf":[{"type":"string"},{"type":"integer"}]})", "true"),
              "it fits none of its schema's anyOf");
    EXPECT_NE(problem(R"({"allOf":[{"minLength":2},{"maxLength":3}]})", R"("日")"), "");
    EXPECT_EQ(problem(R"({"const":{"a":1}})", R"({"a":1})"), "");
    EXPECT_NE(problem(R"({"exclusiveMinimum":0})", "0"), "");
}

TEST(Schema, KnowsTheDeclaredTools) {
    const Value tools =
        json(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","required":["a"]}}},
        {"type":"function","function":{"name":"g"}}])");
    EXPECT_TRUE(check_call(tools, {"f", json(R"({"a":1})")}));
    EXPECT_FALSE(check_call(tools, {"f", json("{}")}));
    EXPECT_TRUE(check_name(tools, {"f", json("{}")}));
    EXPECT_TRUE(check_call(tools, {"g", json("{}")}));
    EXPECT_FALSE(check_name(tools, {"h", json("{}")}));
    EXPECT_FALSE(check_name(Value(), {"h", json("{}")}));
}

}  // namespace
}  // namespace dgemma::server
