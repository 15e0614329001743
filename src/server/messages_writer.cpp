// Replies of POST /v1/messages.
#include "base/sha256.h"
#include "server/writers.h"

namespace dgemma::server {

namespace {

// What a client sends back with a thought. Nobody checks it; that it changes with the thought is all.
std::string signature_of(std::string_view thought) { return sha256_hex(thought); }

std::string_view stop_reason(Finish finish) {
    switch (finish) {
        case Finish::tool_calls:
            return "tool_use";
        case Finish::length:
        case Finish::deadline:
            return "max_tokens";
        case Finish::stop_string:
            return "stop_sequence";
        case Finish::stop:
            break;
    }
    return "end_turn";
}

Value stop_sequence(const ReplyEnd& end) {
    return end.finish == Finish::stop_string ? string(end.stop_string) : Value();
}

// What there is none of here is null, as the clients' types have it.
Value delta_usage(const Usage& usage) {
    // Input tokens are those that were not in the cache, as this API counts.
    Value out =
        object({{"input_tokens", whole(usage.prompt_tokens - usage.cached_tokens)},
                {"cache_creation_input_tokens", whole(0)},
                {"cache_read_input_tokens", whole(usage.cached_tokens)},
                {"output_tokens", whole(usage.completion_tokens)},
                {"output_tokens_details", object({{"thinking_tokens", whole(usage.reasoning_tokens)}})},
                {"server_tool_use", Value()}});
    add_raw_log(out, usage);
    return out;
}

Value whole_usage(const Usage& usage) {
    Value out = delta_usage(usage);
    out.set("cache_creation", Value());
    out.set("inference_geo", Value());
    out.set("service_tier", string("standard"));
    out.set("speed", Value());
    return out;
}

Value message_json(const ReplyHead& head, Value content, Value reason, Value sequence, Value usage) {
    Value::Object members;
    members.push_back({"id", string("msg_" + head.id)});
    members.push_back({"type", string("message")});
    members.push_back({"role", string("assistant")});
    members.push_back({"model", string(head.model)});
    members.push_back({"content", std::move(content)});
    members.push_back({"stop_reason", std::move(reason)});
    members.push_back({"stop_sequence", std::move(sequence)});
    members.push_back({"stop_details", Value()});
    members.push_back({"container", Value()});
    members.push_back({"diagnostics", Value()});
    members.push_back({"usage", std::move(usage)});
    return Value::object(std::move(members));
}

// Arguments are text of ours, so they parse; numbers stay as exact as they were.
Value parsed(const std::string& json) {
    Result<Value> value = text::parse_json(json, "arguments");
    return value ? std::move(value).value() : object();
}

class WholeMessage : public ReplyWriter {
  public:
    explicit WholeMessage(ReplyHead head) : head_(std::move(head)) {}

    void start(const Usage&) override {}
    void reasoning(std::string_view text) override { add("thinking", text); }
    void content(std::string_view text) override { add("text", text); }
    void call(const Call& call) override {
        close();
        blocks_.push_back(object({{"type", string("tool_use")},
                                  {"id", string("toolu_" + call.id)},
                                  {"name", string(call.name)},
                                  {"caller", object({{"type", string("direct")}})},
                                  {"input", parsed(call.arguments)}}));
    }
    void draft(const Value&) override {}
    void ping() override {}
    void fail(const ApiError&) override {}
    void end(const ReplyEnd& end) override {
        close();
        Value reply = message_json(head_, list(std::move(blocks_)), string(stop_reason(end.finish)),
                                   stop_sequence(end), whole_usage(end.usage));
        reply.set("diffusion", end.diffusion);
        out_ = text::to_json(reply);
    }

  private:
    void add(std::string_view kind, std::string_view text) {
        if (kind_ != kind) close();
        kind_ = kind;
        text_ += text;
    }
    void close() {
        if (kind_.empty()) return;
        if (kind_ == "thinking") {
            blocks_.push_back(object({{"type", string("thinking")},
                                      {"thinking", string(text_)},
                                      {"signature", string(signature_of(text_))}}));
        } else {
            blocks_.push_back(
                object({{"type", string("text")}, {"text", string(text_)}, {"citations", list()}}));
        }
        kind_ = {};
        text_.clear();
    }

    ReplyHead head_;
    Value::Array blocks_;
    std::string_view kind_;  // of the block that is being written
    std::string text_;
};

class StreamedMessage : public ReplyWriter {
  public:
    explicit StreamedMessage(ReplyHead head) : head_(std::move(head)) {}

    void start(const Usage& so_far) override {
        put("message_start",
            {{"message", message_json(head_, list(), Value(), Value(), whole_usage(so_far))}});
    }
    void reasoning(std::string_view text) override {
        open("thinking", [] {
            return object(
                {{"type", string("thinking")}, {"thinking", string("")}, {"signature", string("")}});
        });
        thought_ += text;
        for (const std::string_view piece : small_pieces(text))
            delta(object({{"type", string("thinking_delta")}, {"thinking", string(piece)}}));
    }
    void content(std::string_view text) override {
        open("text", [] {
            return object({{"type", string("text")}, {"text", string("")}, {"citations", list()}});
        });
        for (const std::string_view piece : small_pieces(text))
            delta(object({{"type", string("text_delta")}, {"text", string(piece)}}));
    }
    void call(const Call& call) override {
        close();
        open("tool_use", [&] {
            return object({{"type", string("tool_use")},
                           {"id", string("toolu_" + call.id)},
                           {"name", string(call.name)},
                           {"caller", object({{"type", string("direct")}})},
                           {"input", object()}});
        });
        for (const std::string_view piece : small_pieces(call.arguments))
            delta(object({{"type", string("input_json_delta")}, {"partial_json", string(piece)}}));
        close();
    }
    // A ping is the one event that every client of this API passes over.
    void draft(const Value& draft) override { put("ping", {{"diffusion", object({{"draft", draft}})}}); }
    void ping() override { put("ping", {}); }
    void fail(const ApiError& error) override {
        out_ += "event: error\ndata: " + error_json(Api::messages, error, "") + "\n\n";
    }
    void end(const ReplyEnd& end) override {
        close();
        put("message_delta", {{"delta", object({{"stop_reason", string(stop_reason(end.finish))},
                                                {"stop_sequence", stop_sequence(end)},
                                                {"stop_details", Value()},
                                                {"container", Value()}})},
                              {"usage", delta_usage(end.usage)},
                              {"diffusion", end.diffusion}});
        put("message_stop", {});
    }

  private:
    void put(std::string_view type, std::initializer_list<text::Member> members) {
        Value event = object({{"type", string(type)}});
        for (const text::Member& member : members) event.set(member.key, member.value);
        put_event(out_, type, event);
    }
    template <class Block>
    void open(std::string_view kind, const Block& block) {
        if (kind_ == kind) return;
        close();
        kind_ = kind;
        put("content_block_start", {{"index", whole(index_)}, {"content_block", block()}});
    }
    void delta(Value delta) {
        put("content_block_delta", {{"index", whole(index_)}, {"delta", std::move(delta)}});
    }
    void close() {
        if (kind_.empty()) return;
        if (kind_ == "thinking") {
            delta(
                object({{"type", string("signature_delta")}, {"signature", string(signature_of(thought_))}}));
            thought_.clear();
        }
        put("content_block_stop", {{"index", whole(index_++)}});
        kind_ = {};
    }

    ReplyHead head_;
    std::string_view kind_;  // of the open block
    std::string thought_;
    int index_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_messages_writer(const GenerationRequest& request, const ReplyHead& head) {
    if (request.stream) return std::make_unique<StreamedMessage>(head);
    return std::make_unique<WholeMessage>(head);
}

}  // namespace dgemma::server
