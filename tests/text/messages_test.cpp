#include "text/messages.h"

#include <string>

#include <gtest/gtest.h>

namespace dgemma::text {
namespace {

std::string prompt_of(std::string_view messages, std::string_view tools = "") {
    const Result<ChatInput> input = chat_input_from_json(messages, tools);
    if (!input) return "input: " + input.error().message;
    const auto rendered = render_chat(TemplateRevision::canonical, *input);
    return rendered ? join(*rendered) : "render: " + rendered.error().message;
}

TEST(Messages, ParsesArgumentsAndWritesObjectsOfResultsAsText) {
    EXPECT_EQ(prompt_of(R"([{"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": 12345678901234567890}"}},
            {"id": "d", "type": "function", "function": {"name": "g", "arguments": null}}]},
        {"role": "tool", "tool_call_id": "c", "content": {"t": 1.0, "s": [null]}},
        {"role": "tool", "tool_call_id": "d", "content": 2}])"),
              "<bos><|turn>user\ngo<turn|>\n<|turn>model\n"
              "<|tool_call>call:f{a:12345678901234567890,b:1.0}<tool_call|><|tool_call>call:g{}<tool_call|>"
              "<|tool_response>response:f{value:<|\"|>{\"t\":1.0,\"s\":[null]}<|\"|>}<tool_response|>"
              "<|tool_response>response:g{value:2}<tool_response|>");
}

TEST(Messages, TakesAWholeRequestAndItsTools) {
    const std::string expected =
        "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|><|\"|>}<tool|><turn|>\n"
        "<|turn>user\ngo<turn|>\n<|turn>model\n";
    const std::string tools = R"([{"type": "function", "function": {"name": "f", "description": null}}])";
    EXPECT_EQ(prompt_of(R"({"messages": [{"role": "user", "content": "go"}], "tools": )" + tools + "}"),
              expected);
    EXPECT_EQ(prompt_of(R"([{"role": "user", "content": "go"}])", tools), expected);
    EXPECT_EQ(prompt_of(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url",
                            "image_url": {"url": "x.png"}}]}])"),
              "<bos><|turn>user\na<|image|><turn|>\n<|turn>model\n");
}

TEST(Messages, RefusesWithOneSentence) {
    const auto error = [](std::string_view messages, std::string_view tools = "") {
        const Result<ChatInput> input = chat_input_from_json(messages, tools);
        return input.ok() ? std::string("accepted") : input.error().message;
    };
    const std::string go = R"([{"role": "user", "content": "go"}])";
    EXPECT_EQ(error("[]"), "`messages` is empty: send at least one message");
    EXPECT_EQ(error("3"), "`messages` is an integer: it must be a list of messages");
    EXPECT_EQ(error("{}"), "the list of messages is an object without `messages`: give a list");
    EXPECT_EQ(error("["),
              "the list of messages is not valid JSON at its end: a value, comma, colon or bracket is "
              "missing or out of place");
    EXPECT_EQ(error(R"(["x"])"), "messages[0] is a string: a message is an object with `role` and `content`");
    EXPECT_EQ(
        error(R"([{"role": "usr", "content": ""}])"),
        "messages[0].role is \"usr\", which is unknown: use system, developer, user, assistant or tool");
    EXPECT_EQ(error(R"([{"content": ""}])"),
              "messages[0].role is missing: use system, developer, user, assistant or tool");
    EXPECT_EQ(error(R"([{"role": "user"}])"),
              "messages[0].content is missing: give it a text or a list of parts");
    EXPECT_EQ(error(R"([{"role": "user", "content": {"a": 1}}])"),
              "messages[0].content is an object: it must be a text or a list of parts");
    EXPECT_EQ(error(R"([{"role": "user", "content": ["a"]}])"),
              "messages[0].content[0].type is missing: write {\"type\": \"text\", \"text\": \"...\"}");
    EXPECT_EQ(error(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              "messages[0].content[0].text is missing: a text part needs a string");
    EXPECT_EQ(
        error(R"([{"role": "user", "content": [{"type": "input_audio"}]}])"),
        "messages[0].content[0] is audio, which DiffusionGemma cannot hear: send its transcript as text");
    EXPECT_EQ(
        error(R"([{"role": "user", "content": [{"type": "smell"}]}])"),
        "messages[0].content[0].type is \"smell\", which is unknown: use text, image, image_url or video");
    // However long a client's word is, the sentence stays one.
    const std::string word(5000, 'x');
    EXPECT_LT(error(R"([{"role": ")" + word + R"(", "content": ""}])").size(), 400u);
    EXPECT_LT(error(R"([{"role": "user", "content": [{"type": ")" + word + R"("}]}])").size(), 400u);
    EXPECT_EQ(error(R"([{"role": "assistant", "reasoning_content": 1}])"),
              "messages[0].reasoning_content is an integer: it must be a string");
    EXPECT_EQ(error(R"([{"role": "tool", "content": [1]}])"),
              "messages[0].content[0].type is missing: write {\"type\": \"text\", \"text\": \"...\"}");

    const auto call = [&](const std::string& function) {
        return error(R"([{"role": "assistant", "tool_calls": [{"id": "c", "function": )" + function + "}]}]");
    };
    EXPECT_EQ(call(R"({"arguments": "{}"})"),
              "messages[0].tool_calls[0].function.name is missing: give it a string");
    EXPECT_EQ(
        call(R"({"name": "f", "arguments": "[1]"})"),
        "messages[0].tool_calls[0].function.arguments is a list: it must be an object, or JSON text of one");
    EXPECT_EQ(
        call(R"({"name": "f"})"),
        "messages[0].tool_calls[0].function.arguments is missing: it must be an object, or JSON text of one");
    EXPECT_EQ(
        call(R"({"name": "f", "arguments": "null"})"),
        "messages[0].tool_calls[0].function.arguments is null: it must be an object, or JSON text of one");
    EXPECT_EQ(call(R"({"name": "f", "arguments": "{a:1}"})"),
              "messages[0].tool_calls[0].function.arguments is not valid JSON at column 2: "
              "a value, comma, colon or bracket is missing or out of place");

    EXPECT_EQ(
        error(go, R"([{"name": "f", "parameters": {}}])"),
        "tools[0] is a flat declaration: wrap it as {\"type\": \"function\", \"function\": {\"name\": ..., "
        "\"description\": ..., \"parameters\": ...}}");
    EXPECT_EQ(error(go, "{}"), "`tools` is an object: it must be a list of declarations");
    EXPECT_EQ(error(go, R"([{"function": {"name": ""}}])"),
              "tools[0].function.name is empty: give it a string");
    EXPECT_EQ(error(go, R"([{"function": {"name": "f", "parameters": []}}])"),
              "tools[0].function.parameters is a list: it must be a JSON schema object");
    // What only the template finds wrong is told by the renderer.
    EXPECT_EQ(prompt_of(go, R"([{"function": {"name": "f", "parameters": {"properties": [1]}}}])"),
              "render: tools[0].function.parameters has `properties` that are a list: they must be an object "
              "of schemas");
}

TEST(Messages, MakeAPromptOfOneQuestion) {
    EXPECT_EQ(join(*render_chat(TemplateRevision::canonical, chat_input_from_prompt("", "hi", false))),
              "<bos><|turn>user\nhi<turn|>\n<|turn>model\n");
    EXPECT_EQ(
        join(*render_chat(TemplateRevision::canonical, chat_input_from_prompt("be\xFF brief", "hi", true))),
        "<bos><|turn>system\n<|think|>\nbe\uFFFD brief<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n");
}

TEST(Messages, CanDropTheContentThatWouldCloseTheTurn) {
    const std::string_view messages = R"([{"role": "user", "content": "go"},
        {"role": "assistant", "content": "I look it up.", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"}])";
    EXPECT_TRUE(prompt_of(messages).ends_with("<tool_response|>I look it up.<turn|>\n"));
    Result<ChatInput> input = chat_input_from_json(messages, "");
    ASSERT_TRUE(input.ok());
    drop_content_after_results(*input);
    EXPECT_TRUE(join(*render_chat(TemplateRevision::canonical, *input)).ends_with("<tool_response|>"));
    // Without results there is nothing to go on with.
    ChatInput question = chat_input_from_prompt("", "hi", false);
    drop_content_after_results(question);
    EXPECT_NE(question.messages.as_array()[0].find("content"), nullptr);
}

}  // namespace
}  // namespace dgemma::text
