// Replies of POST /v1/completions.
#include "server/writers.h"

namespace dgemma::server {

namespace {

class CompletionWriter : public ReplyWriter {
  public:
    CompletionWriter(const GenerationRequest& request, const ReplyHead& head)
        : stream_(request.stream),
          include_usage_(request.include_usage),
          frame_(object({{"id", string("cmpl-" + head.id)},
                         {"object", string("text_completion")},
                         {"created", whole(head.created)},
                         {"model", string(head.model)}})) {}

    void start(const Usage&) override {}
    // The text goes on as the model writes it; what it marks as a thought or a call is none of it.
    void reasoning(std::string_view) override {}
    void call(const Call&) override {}
    void content(std::string_view text) override {
        if (!stream_) {
            text_ += text;
            return;
        }
        for (const std::string_view piece : small_pieces(text)) put(piece, Value(), nullptr);
    }
    void draft(const Value& draft) override {
        if (!stream_) return;
        Value chunk = frame_;
        chunk.set("choices", list());
        if (include_usage_) chunk.set("usage", Value());
        chunk.set("diffusion", object({{"draft", draft}}));
        put_event(out_, "draft", chunk);
    }
    void ping() override {
        if (stream_) out_ += ": ping\n\n";
    }
    void fail(const ApiError& error) override {
        out_ += "data: " + error_json(Api::completions, error, "") + "\n\n";
    }
    void end(const ReplyEnd& end) override {
        const Value reason = string(chat_finish(end.finish));
        if (stream_) {
            put("", reason, &end.diffusion);
            if (include_usage_) {
                Value chunk = frame_;
                chunk.set("choices", list());
                chunk.set("usage", chat_usage(end.usage));
                put_event(out_, "", chunk);
            }
            out_ += "data: [DONE]\n\n";
            return;
        }
        Value reply = frame_;
        reply.set("choices", one_of(choice(text_, reason)));
        reply.set("usage", chat_usage(end.usage));
        reply.set("diffusion", end.diffusion);
        out_ = text::to_json(reply);
    }

  private:
    static Value choice(std::string_view text, const Value& reason) {
        return object(
            {{"text", string(text)}, {"index", whole(0)}, {"logprobs", Value()}, {"finish_reason", reason}});
    }

    void put(std::string_view text, const Value& reason, const Value* diffusion) {
        Value chunk = frame_;
        chunk.set("choices", one_of(choice(text, reason)));
        if (include_usage_) chunk.set("usage", Value());
        if (diffusion != nullptr) chunk.set("diffusion", *diffusion);
        put_event(out_, "", chunk);
    }

    bool stream_, include_usage_;
    Value frame_;
    std::string text_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_writer(const GenerationRequest& request, const ReplyHead& head) {
    return std::make_unique<CompletionWriter>(request, head);
}

}  // namespace dgemma::server
