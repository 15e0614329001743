// Replies of POST /v1/chat/completions.
#include "server/writers.h"

namespace dgemma::server {

Value chat_usage(const Usage& usage) {
    Value prompt = object({{"cached_tokens", whole(usage.cached_tokens)}});
    add_raw_log(prompt, usage);
    return object(
        {{"prompt_tokens", whole(usage.prompt_tokens)},
         {"completion_tokens", whole(usage.completion_tokens)},
         {"total_tokens", whole(usage.prompt_tokens + usage.completion_tokens)},
         {"prompt_tokens_details", std::move(prompt)},
         {"completion_tokens_details", object({{"reasoning_tokens", whole(usage.reasoning_tokens)}})}});
}

std::string_view chat_finish(Finish finish) {
    switch (finish) {
        case Finish::tool_calls:
            return "tool_calls";
        case Finish::length:
        case Finish::deadline:
            return "length";
        case Finish::stop:
        case Finish::stop_string:
            break;
    }
    return "stop";
}

namespace {

Value call_json(const Call& call) {
    return object(
        {{"id", string("call_" + call.id)},
         {"type", string("function")},
         {"function", object({{"name", string(call.name)}, {"arguments", string(call.arguments)}})}});
}

Value head_json(const ReplyHead& head, std::string_view kind) {
    return object({{"id", string("chatcmpl-" + head.id)},
                   {"object", string(kind)},
                   {"created", whole(head.created)},
                   {"model", string(head.model)}});
}

class WholeChat : public ReplyWriter {
  public:
    explicit WholeChat(ReplyHead head) : head_(std::move(head)) {}

    void start(const Usage&) override {}
    void reasoning(std::string_view text) override { reasoning_ += text; }
    void content(std::string_view text) override { content_ += text; }
    void call(const Call& call) override { calls_.push_back(call_json(call)); }
    void draft(const Value&) override {}
    void ping() override {}
    void fail(const ApiError&) override {}
    void end(const ReplyEnd& end) override {
        Value message = object({{"role", string("assistant")},
                                {"content", content_.empty() && !calls_.empty() ? Value() : string(content_)},
                                {"refusal", Value()}});
        if (!reasoning_.empty()) message.set("reasoning_content", string(reasoning_));
        if (!calls_.empty()) message.set("tool_calls", list(std::move(calls_)));
        Value reply = head_json(head_, "chat.completion");
        Value choice = object({{"index", whole(0)},
                               {"message", std::move(message)},
                               {"logprobs", Value()},
                               {"finish_reason", string(chat_finish(end.finish))}});
        reply.set("choices", one_of(std::move(choice)));
        reply.set("usage", chat_usage(end.usage));
        reply.set("diffusion", end.diffusion);
        out_ = text::to_json(reply);
    }

  private:
    ReplyHead head_;
    std::string reasoning_, content_;
    Value::Array calls_;
};

class StreamedChat : public ReplyWriter {
  public:
    StreamedChat(const ReplyHead& head, bool include_usage)
        : chunk_(head_json(head, "chat.completion.chunk")), include_usage_(include_usage) {}

    void start(const Usage&) override {
        put(object({{"role", string("assistant")}, {"content", string("")}, {"refusal", Value()}}));
    }
    void reasoning(std::string_view text) override {
        for (const std::string_view piece : small_pieces(text))
            put(object({{"reasoning_content", string(piece)}}));
    }
    void content(std::string_view text) override {
        for (const std::string_view piece : small_pieces(text)) put(object({{"content", string(piece)}}));
    }
    // One delta with all of the call: id and name on several would be joined to one by clients that add up
    // whatever is text.
    void call(const Call& call) override {
        Value json = object({{"index", whole(calls_++)}});
        const Value rest = call_json(call);
        for (const text::Member& member : rest.as_object()) json.set(member.key, member.value);
        put(object({{"tool_calls", one_of(std::move(json))}}));
    }
    void draft(const Value& draft) override {
        Value chunk = chunk_;
        chunk.set("choices", list());
        if (include_usage_) chunk.set("usage", Value());
        chunk.set("diffusion", object({{"draft", draft}}));
        put_event(out_, "draft", chunk);
    }
    void ping() override { out_ += ": ping\n\n"; }
    void fail(const ApiError& error) override {
        out_ += "data: " + error_json(Api::chat, error, "") + "\n\n";
    }
    void end(const ReplyEnd& end) override {
        Value last = chunk_;
        Value choice = object({{"index", whole(0)},
                               {"delta", object()},
                               {"logprobs", Value()},
                               {"finish_reason", string(chat_finish(end.finish))}});
        last.set("choices", one_of(std::move(choice)));
        if (include_usage_) last.set("usage", Value());
        last.set("diffusion", end.diffusion);
        put_event(out_, "", last);
        if (include_usage_) {
            Value chunk = chunk_;
            chunk.set("choices", list());
            chunk.set("usage", chat_usage(end.usage));
            put_event(out_, "", chunk);
        }
        out_ += "data: [DONE]\n\n";
    }

  private:
    void put(Value delta) {
        Value chunk = chunk_;
        Value choice = object({{"index", whole(0)},
                               {"delta", std::move(delta)},
                               {"logprobs", Value()},
                               {"finish_reason", Value()}});
        chunk.set("choices", one_of(std::move(choice)));
        if (include_usage_) chunk.set("usage", Value());
        put_event(out_, "", chunk);
    }

    Value chunk_;
    bool include_usage_;
    int calls_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_writer(const GenerationRequest& request, const ReplyHead& head) {
    if (request.stream) return std::make_unique<StreamedChat>(head, request.include_usage);
    return std::make_unique<WholeChat>(head);
}

}  // namespace dgemma::server
