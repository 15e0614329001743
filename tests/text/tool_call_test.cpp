// Tool calls rendered and read back.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "chat_goldens.h"
#include "text/output_parser.h"
#include "text/segment_writer.h"
#include "text/tool_syntax.h"

namespace dgemma::text {
namespace {

std::string rendered_call(const std::string& name, const Value& arguments) {
    SegmentWriter out;
    ToolSyntax syntax(out, "null");
    out.markup("<|tool_call>call:" + name + "{");
    syntax.members(arguments);
    out.markup("}<tool_call|>");
    std::string text;
    for (const Segment& segment : out.segments()) text += segment.text;
    return text;
}

TEST(ToolCalls, SurviveTheRoundTrip) {
    const std::vector<Value> rows = chat_goldens("tool_call_roundtrip.jsonl");
    ASSERT_EQ(rows.size(), 142U);
    for (const Value& row : rows) {
        const std::string& name = row.find("name")->as_string();
        const std::string& text = row.find("text")->as_string();
        EXPECT_EQ(rendered_call(name, *row.find("arguments")), text);
        const ParsedReply reply = parse_output(text, {});
        ASSERT_EQ(reply.tool_calls.size(), 1U) << text;
        EXPECT_EQ(reply.tool_calls[0].name, name);
        EXPECT_TRUE(same_json(reply.tool_calls[0].arguments, *row.find("arguments"))) << text;
    }
}

Value random_value(std::mt19937& random, int depth) {
    static const std::vector<std::string> words = {
        "a",  "é", "null",    "1.0",          "}", "]",    ",",        ":",    "\n",  " x ", "\"",
        "\\", "",  "<turn|>", "<tool_call|>", "<", "<|\"", "call:f{}", "true", "日本"};
    const auto word = [&] {
        std::string out;
        for (std::size_t i = random() % 4; i > 0; --i) out += words[random() % words.size()];
        // Two markers in a row are what a forgotten quote looks like.
        return out.find("<tool_call|><") == std::string::npos ? out : std::string("x");
    };
    switch (random() % (depth > 3 ? 5 : 7)) {
        case 0:
            return Value();
        case 1:
            return Value::boolean(random() % 2 == 0);
        case 2:
            return Value::integer(Integer{"-12345678901234567890" + std::to_string(random())});
        case 3:
            return Value::number(static_cast<double>(random()) / 7e5);
        case 4:
            return Value::string(word());
        case 5: {
            Value::Array items;
            for (std::size_t i = random() % 4; i > 0; --i) items.push_back(random_value(random, depth + 1));
            return Value::array(std::move(items));
        }
        default: {
            Value::Object members;
            for (std::size_t i = random() % 4; i > 0; --i)
                members.push_back({"k" + std::to_string(random() % 20), random_value(random, depth + 1)});
            return Value::object(std::move(members));
        }
    }
}

TEST(ToolCalls, SurviveTheRoundTripWhateverTheyHold) {
    std::mt19937 random(3);
    for (int round = 0; round < 5000; ++round) {
        const Value arguments =
            Value::object({{"a", random_value(random, 0)}, {"b", random_value(random, 0)}});
        const std::string text = rendered_call("f", arguments);
        const ParsedReply reply = parse_output(text, {});
        ASSERT_EQ(reply.tool_calls.size(), 1U) << text;
        ASSERT_TRUE(same_json(reply.tool_calls[0].arguments, arguments)) << text;
    }
}

TEST(ToolCalls, CanSayWhatReadsBack) {
    for (const std::string name :
         {"f", "get_weather", "a.b/c-d:e", "f g", "é", "{", "f{", "}", " f", "f\n", ""}) {
        const Result<ToolCall> call = parse_tool_call("call:" + name + "{}");
        EXPECT_EQ(can_be_called(name), call.ok() && call->name == name) << name;
    }
}

}  // namespace
}  // namespace dgemma::text
