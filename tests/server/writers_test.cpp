#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/reply_writer.h"

namespace dgemma::server {
namespace {

GenerationRequest request_of(Api api, bool stream) {
    GenerationRequest request;
    request.api = api;
    request.stream = stream;
    request.include_usage = true;
    return request;
}

struct Event {
    std::string name;
    Value data;
};

// The events of a stream; every line must be one of SSE's.
std::vector<Event> events_of(std::string_view stream) {
    std::vector<Event> out;
    Event event;
    while (!stream.empty()) {
        const std::size_t end = stream.find('\n');
        EXPECT_NE(end, std::string_view::npos);
        const std::string_view line = stream.substr(0, end);
        stream.remove_prefix(end + 1);
        if (line.starts_with("event: ")) {
            event.name = line.substr(7);
        } else if (line == "data: [DONE]") {
            event.data = string("[DONE]");
        } else if (line.starts_with("data: ")) {
            Result<Value> json = text::parse_json(line.substr(6), "event");
            EXPECT_TRUE(json.ok()) << line;
            event.data = std::move(json).value();
        } else if (line.empty()) {
            if (!event.data.is(Value::Type::null)) out.push_back(std::exchange(event, {}));
        } else {
            EXPECT_TRUE(line.starts_with(":")) << line;
        }
    }
    return out;
}

// One reply with everything in it.
std::string tell(ReplyWriter& writer) {
    writer.start({.prompt_tokens = 7, .cached_tokens = 2});
    writer.reasoning("let me\nsee");
    writer.draft(object({{"content", string("maybe")}}));
    writer.ping();
    writer.content("Hello there, wörld");
    writer.call({"abc", "f", R"({"a":12345678901234567890})"});
    writer.end(
        {.finish = Finish::tool_calls,
         .usage = {.prompt_tokens = 7, .cached_tokens = 2, .completion_tokens = 9, .reasoning_tokens = 3},
         .diffusion = object({{"seed", whole(5)}})});
    return writer.take();
}

std::string told(Api api, bool stream) {
    const auto writer = make_writer(request_of(api, stream), {.id = "id", .created = 1, .model = "m"});
    return tell(*writer);
}

TEST(SmallPieces, AreWordsAndWholeCharacters) {
    const std::string text = "Hello there,  wörld\n日本日本日本日本日本日本日本日本日本日本";
    std::string joined;
    for (const std::string_view piece : small_pieces(text)) {
        EXPECT_FALSE(piece.empty());
        EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0, 0x80);
        joined += piece;
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(small_pieces("a b").size(), 2u);
    EXPECT_TRUE(small_pieces("").empty());
}

TEST(ChatWriter, WritesAWholeReply) {
    EXPECT_EQ(
        told(Api::chat, false),
        R"({"id":"chatcmpl-id","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":)"
        R"({"role":"assistant","content":"Hello there, wörld","refusal":null,"reasoning_content":"let me\nsee",)"
        R"("tool_calls":[{"id":"call_abc","type":"function","function":{"name":"f","arguments":)"
        R"("{\"a\":12345678901234567890}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],)"
        R"("usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16,"prompt_tokens_details":)"
        R"({"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":3}},"diffusion":{"seed":5}})");
}

TEST(AllWriters, SayInUsageThatAToolTurnWentOnFromItsRawLog) {
    for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages}) {
        for (const bool stream : {false, true}) {
            for (const int raw : {0, 6}) {
                const auto writer =
                    make_writer(request_of(api, stream), {.id = "id", .created = 1, .model = "m"});
                const Usage usage = {.prompt_tokens = 7, .cached_tokens = 5, .raw_log_tokens = raw};
                writer->start(usage);
                writer->content("a");
                writer->end({.usage = usage});
                const std::string said = writer->take();
                const bool told = said.find(R"("raw_log_tokens":6)") != std::string::npos;
                EXPECT_EQ(told, raw > 0) << said;
                EXPECT_EQ(said.find("raw_log_tokens") != std::string::npos, raw > 0) << said;
            }
        }
    }
}

TEST(ChatWriter, StreamsDeltas) {
    const auto events = events_of(told(Api::chat, true));
    std::string content, thought;
    for (const Event& event : events) {
        if (!event.data.is(Value::Type::object)) continue;
        const Value& choices = *event.data.find("choices");
        if (choices.as_array().empty()) continue;
        const Value& delta = *choices.as_array().front().find("delta");
        content += text_at(delta, "content");
        thought += text_at(delta, "reasoning_content");
        if (const Value* calls = delta.find("tool_calls")) {
            EXPECT_EQ(text::to_json(*calls),
                      R"([{"index":0,"id":"call_abc","type":"function","function":{"name":"f",)"
                      R"("arguments":"{\"a\":12345678901234567890}"}}])");
        }
    }
    EXPECT_EQ(content, "Hello there, wörld");
    EXPECT_EQ(thought, "let me\nsee");
    EXPECT_TRUE(events.back().data.is(Value::Type::string));
    const Value& usage = events[events.size() - 2].data;
    EXPECT_TRUE(usage.find("choices")->as_array().empty());
    EXPECT_EQ(text::to_json(*usage.find("usage")->find("total_tokens")), "16");
    EXPECT_EQ(
        std::count_if(events.begin(), events.end(), [](const Event& event) { return event.name == "draft"; }),
        1);
}

TEST(MessagesWriter, WritesAWholeReply) {
    const std::string reply = told(Api::messages, false);
    const Result<Value> json = text::parse_json(reply, "reply");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ(text_at(json.value(), "stop_reason"), "tool_use");
    const auto& blocks = json->find("content")->as_array();
    ASSERT_EQ(blocks.size(), 3u);
    EXPECT_EQ(text_at(blocks[0], "thinking"), "let me\nsee");
    EXPECT_EQ(text_at(blocks[1], "text"), "Hello there, wörld");
    EXPECT_EQ(text::to_json(*blocks[2].find("input")), R"({"a":12345678901234567890})");
    EXPECT_EQ(text::to_json(*json->find("usage")->find("input_tokens")), "5");
}

TEST(MessagesWriter, StreamsBlocksInOrder) {
    std::string order;
    int index = -1;
    for (const Event& event : events_of(told(Api::messages, true))) {
        EXPECT_EQ(event.name, text_at(event.data, "type"));
        if (event.name == "content_block_start") {
            EXPECT_EQ(text::to_json(*event.data.find("index")), std::to_string(++index));
            order += std::string(text_at(*event.data.find("content_block"), "type")) + " ";
        }
        if (event.name == "content_block_stop") order += "/ ";
        if (event.name.starts_with("message_")) order += event.name + " ";
    }
    EXPECT_EQ(order, "message_start thinking / text / tool_use / message_delta message_stop ");
}

TEST(ResponsesWriter, StreamsNumberedEventsOfItems) {
    std::string order;
    int number = 0;
    for (const Event& event : events_of(told(Api::responses, true))) {
        EXPECT_EQ(event.name, text_at(event.data, "type"));
        EXPECT_EQ(text::to_json(*event.data.find("sequence_number")), std::to_string(number++));
        if (event.name.ends_with(".delta")) continue;
        order += event.name.substr(9) + " ";
    }
    EXPECT_EQ(order,
              "created in_progress output_item.added diffusion.draft reasoning_text.done output_item.done "
              "output_item.added content_part.added output_text.done content_part.done output_item.done "
              "output_item.added function_call_arguments.done output_item.done completed ");
}

TEST(ResponsesWriter, SaysWhyAReplyIsIncomplete) {
    const auto writer =
        make_writer(request_of(Api::responses, false), {.id = "id", .created = 1, .model = "m"});
    writer->start({});
    writer->content("cut");
    writer->end({.finish = Finish::length});
    const Result<Value> json = text::parse_json(writer->take(), "reply");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ(text_at(json.value(), "status"), "incomplete");
    EXPECT_EQ(text_at(*json->find("incomplete_details"), "reason"), "max_output_tokens");
}

TEST(CompletionWriter, WritesTextAlone) {
    const Result<Value> json = text::parse_json(told(Api::completions, false), "reply");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ(text_at(json->find("choices")->as_array().front(), "text"), "Hello there, wörld");
    std::string text;
    for (const Event& event : events_of(told(Api::completions, true))) {
        const Value* choices = event.data.find("choices");
        if (choices != nullptr && !choices->as_array().empty())
            text += text_at(choices->as_array().front(), "text");
    }
    EXPECT_EQ(text, "Hello there, wörld");
}

TEST(ErrorJson, HasEachApisShape) {
    const ApiError error{.message = "No.", .field = "n"};
    EXPECT_EQ(
        error_json(Api::chat, error, "r"),
        R"({"error":{"message":"No.","type":"invalid_request_error","param":"n","code":"invalid_request_error"}})");
    EXPECT_EQ(
        error_json(Api::messages, error, "r"),
        R"({"type":"error","error":{"type":"invalid_request_error","message":"n: No."},"request_id":"r"})");
    EXPECT_EQ(messages_error_type({.status = 429}), "rate_limit_error");
    EXPECT_EQ(messages_error_type({.status = 503}), "overloaded_error");
}

}  // namespace
}  // namespace dgemma::server
