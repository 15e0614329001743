// Replies of POST /v1/responses: a list of items, and an event for everything that happens to one.
#include "server/sealed_thought.h"
#include "server/writers.h"

namespace dgemma::server {

namespace {

Value usage_json(const Usage& usage) {
    Value input = object({{"cached_tokens", whole(usage.cached_tokens)}, {"cache_write_tokens", whole(0)}});
    add_raw_log(input, usage);
    return object({{"input_tokens", whole(usage.prompt_tokens)},
                   {"input_tokens_details", std::move(input)},
                   {"output_tokens", whole(usage.completion_tokens)},
                   {"output_tokens_details", object({{"reasoning_tokens", whole(usage.reasoning_tokens)}})},
                   {"total_tokens", whole(usage.prompt_tokens + usage.completion_tokens)}});
}

class ResponsesWriter : public ReplyWriter {
  public:
    ResponsesWriter(const GenerationRequest& request, ReplyHead head)
        : stream_(request.stream),
          kept_(request.store),
          summary_(request.reasoning_summary),
          send_back_(request.reasoning_to_send_back),
          head_(std::move(head)),
          frame_(frame_of(request, head_)) {}

    void start(const Usage&) override {
        event("response.created", {{"response", response("in_progress")}});
        event("response.in_progress", {{"response", response("in_progress")}});
    }

    void reasoning(std::string_view text) override {
        open(Kind::reasoning);
        for (const std::string_view piece : small_pieces(text)) {
            if (summary_) {
                event("response.reasoning_summary_text.delta", {{"item_id", id()},
                                                                {"output_index", index()},
                                                                {"summary_index", whole(0)},
                                                                {"delta", string(piece)}});
            } else {
                event("response.reasoning_text.delta", {{"item_id", id()},
                                                        {"output_index", index()},
                                                        {"content_index", whole(0)},
                                                        {"delta", string(piece)}});
            }
        }
        text_ += text;
    }

    void content(std::string_view text) override {
        open(Kind::message);
        for (const std::string_view piece : small_pieces(text)) {
            event("response.output_text.delta", {{"item_id", id()},
                                                 {"output_index", index()},
                                                 {"content_index", whole(0)},
                                                 {"delta", string(piece)},
                                                 {"logprobs", list()}});
        }
        text_ += text;
    }

    void call(const Call& call) override {
        close("completed");
        const auto item = [&](std::string_view status, std::string_view arguments) {
            return object({{"type", string("function_call")},
                           {"id", id_of("fc_")},
                           {"call_id", string("call_" + call.id)},
                           {"name", string(call.name)},
                           {"arguments", string(arguments)},
                           {"status", string(status)}});
        };
        event("response.output_item.added", {{"output_index", index()}, {"item", item("in_progress", "")}});
        for (const std::string_view piece : small_pieces(call.arguments)) {
            event("response.function_call_arguments.delta",
                  {{"item_id", id_of("fc_")}, {"output_index", index()}, {"delta", string(piece)}});
        }
        event("response.function_call_arguments.done", {{"item_id", id_of("fc_")},
                                                        {"output_index", index()},
                                                        {"name", string(call.name)},
                                                        {"arguments", string(call.arguments)}});
        finish_item(item("completed", call.arguments));
    }

    void draft(const Value& draft) override { event("response.diffusion.draft", {{"draft", draft}}); }

    void ping() override {
        if (stream_) out_ += ": ping\n\n";
    }

    void fail(const ApiError& error) override {
        Value failed = response("failed");
        failed.set("error", object({{"code", string("server_error")}, {"message", string(error.message)}}));
        event("response.failed", {{"response", std::move(failed)}});
    }

    void end(const ReplyEnd& end) override {
        const bool cut = end.finish == Finish::length || end.finish == Finish::deadline;
        close(cut ? "incomplete" : "completed");
        Value reply = response(cut ? "incomplete" : "completed");
        if (cut) reply.set("incomplete_details", object({{"reason", string("max_output_tokens")}}));
        reply.set("usage", usage_json(end.usage));
        reply.set("diffusion", end.diffusion);
        if (kept_ || !stream_) reply_ = text::to_json(reply);
        if (!stream_) {
            out_ = reply_;
            return;
        }
        event(cut ? "response.incomplete" : "response.completed", {{"response", std::move(reply)}});
    }

    [[nodiscard]] std::string id_for_store() const override { return "resp_" + head_.id; }
    [[nodiscard]] Value::Array items() const override { return items_; }
    [[nodiscard]] std::string reply() const override { return reply_; }

  private:
    enum class Kind : std::uint8_t { none, reasoning, message };

    // What stays the same in all events that hold the response.
    static Value frame_of(const GenerationRequest& request, const ReplyHead& head) {
        Value frame = object({{"id", string("resp_" + head.id)},
                              {"object", string("response")},
                              {"created_at", whole(head.created)},
                              {"status", string("in_progress")},
                              {"background", boolean(false)},
                              {"error", Value()},
                              {"incomplete_details", Value()},
                              {"instructions", Value()},
                              {"max_output_tokens", Value()},
                              {"model", string(head.model)},
                              {"output", list()},
                              {"parallel_tool_calls", boolean(true)},
                              {"previous_response_id", Value()},
                              {"reasoning", object({{"effort", Value()}, {"summary", Value()}})},
                              {"service_tier", string("default")},
                              {"temperature", whole(0)},
                              {"text", object({{"format", object({{"type", string("text")}})}})},
                              {"tool_choice", string("auto")},
                              {"tools", list()},
                              {"top_p", whole(1)},
                              {"truncation", string("disabled")},
                              {"metadata", object()}});
        for (const text::Member& member : request.echo.as_object()) frame.set(member.key, member.value);
        return frame;
    }

    Value response(std::string_view status) {
        Value out = frame_;
        out.set("status", string(status));
        out.set("output", list(items_));
        return out;
    }

    void event(std::string_view type, std::initializer_list<text::Member> members) {
        if (!stream_) return;
        Value json = object({{"type", string(type)}, {"sequence_number", whole(sequence_++)}});
        for (const text::Member& member : members) json.set(member.key, member.value);
        put_event(out_, type, json);
    }

    [[nodiscard]] Value index() const { return whole(static_cast<std::int64_t>(items_.size())); }
    [[nodiscard]] Value id_of(std::string_view prefix) const {
        return string(std::string(prefix) + head_.id + "_" + std::to_string(items_.size()));
    }
    [[nodiscard]] Value id() const { return id_of(kind_ == Kind::reasoning ? "rs_" : "msg_"); }

    [[nodiscard]] Value item(std::string_view status) const {
        if (kind_ == Kind::message) {
            return object({{"type", string("message")},
                           {"id", id()},
                           {"status", string(status)},
                           {"role", string("assistant")},
                           {"content", status == "in_progress" ? list() : one_of(text_part())}});
        }
        Value out = object({{"type", string("reasoning")}, {"id", id()}, {"summary", list()}});
        if (status == "in_progress") return out;
        if (summary_)
            out.set("summary", one_of(summary_part(text_)));
        else
            out.set("content", one_of(object({{"type", string("reasoning_text")}, {"text", string(text_)}})));
        if (send_back_) out.set("encrypted_content", string(sealed_thought(text_)));
        return out;
    }
    static Value summary_part(std::string_view text) {
        return object({{"type", string("summary_text")}, {"text", string(text)}});
    }
    [[nodiscard]] Value text_part() const {
        return object({{"type", string("output_text")},
                       {"text", string(text_)},
                       {"annotations", list()},
                       {"logprobs", list()}});
    }

    void open(Kind kind) {
        if (kind_ == kind) return;
        close("completed");
        kind_ = kind;
        event("response.output_item.added", {{"output_index", index()}, {"item", item("in_progress")}});
        if (kind == Kind::message) {
            event("response.content_part.added", {{"item_id", id()},
                                                  {"output_index", index()},
                                                  {"content_index", whole(0)},
                                                  {"part", text_part()}});
        } else if (summary_) {
            event("response.reasoning_summary_part.added", {{"item_id", id()},
                                                            {"output_index", index()},
                                                            {"summary_index", whole(0)},
                                                            {"part", summary_part("")}});
        }
    }

    void close(std::string_view status) {
        if (kind_ == Kind::none) return;
        if (kind_ == Kind::message) {
            event("response.output_text.done", {{"item_id", id()},
                                                {"output_index", index()},
                                                {"content_index", whole(0)},
                                                {"text", string(text_)},
                                                {"logprobs", list()}});
            event("response.content_part.done", {{"item_id", id()},
                                                 {"output_index", index()},
                                                 {"content_index", whole(0)},
                                                 {"part", text_part()}});
        } else if (summary_) {
            event("response.reasoning_summary_text.done", {{"item_id", id()},
                                                           {"output_index", index()},
                                                           {"summary_index", whole(0)},
                                                           {"text", string(text_)}});
            event("response.reasoning_summary_part.done", {{"item_id", id()},
                                                           {"output_index", index()},
                                                           {"summary_index", whole(0)},
                                                           {"part", summary_part(text_)}});
        } else {
            event("response.reasoning_text.done", {{"item_id", id()},
                                                   {"output_index", index()},
                                                   {"content_index", whole(0)},
                                                   {"text", string(text_)}});
        }
        finish_item(item(status));
        kind_ = Kind::none;
        text_.clear();
    }

    void finish_item(Value done) {
        event("response.output_item.done", {{"output_index", index()}, {"item", done}});
        items_.push_back(std::move(done));
    }

    bool stream_, kept_, summary_, send_back_;
    std::string reply_;  // complete, as JSON
    ReplyHead head_;
    Value frame_;
    Value::Array items_;  // done
    Kind kind_ = Kind::none;
    std::string text_;  // of the open item
    int sequence_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_responses_writer(const GenerationRequest& request, const ReplyHead& head) {
    return std::make_unique<ResponsesWriter>(request, head);
}

}  // namespace dgemma::server
