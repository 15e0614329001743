// What a turn asks the engine for.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/budget.h"
#include "reply/reading.h"
#include "server/conversation.h"
#include "server/schema.h"
#include "server/turn.h"
#include "server/turn_listener.h"
#include "text/python_text.h"

namespace dgemma::server {

std::vector<diffusion::Pin> Turn::pins() const {
    std::vector<diffusion::Pin> out;
    if (!must_call_ || after_thought_) return out;
    const auto pin = [&](std::int32_t id) { out.push_back({static_cast<int>(out.size()), id}); };
    pin(model_->tokenizer.id_of("<|tool_call>"));
    std::string head = "call:";
    if (request_.tool_choice.kind == ToolChoice::Kind::named) {
        head += request_.tool_choice.name;
        // Where another tool's name begins with this one, only the brace tells them apart; and where a call
        // went wrong, the brace helps.
        bool brace = attempt_ > 0;
        for (const Value& tool : request_.chat.tools.as_array()) {
            const std::string_view name = text_at(*tool.find("function"), "name");
            brace = brace || (name.size() > request_.tool_choice.name.size() &&
                              name.starts_with(request_.tool_choice.name));
        }
        if (brace) head += '{';
    }
    for (const std::int32_t id : model_->tokenizer.encode(head, text::Specials::as_text)) pin(id);
    return out;
}

engine::Request Turn::engine_request() const {
    engine::Request out;
    out.prompt = log_;
    if (request_.max_tokens > 0) out.max_tokens = request_.max_tokens - usage_.completion_tokens;
    out.diffusion = model_->port->default_options();
    const DiffusionFields& fields = request_.diffusion;
    if (fields.steps) out.diffusion.max_steps = *fields.steps;
    if (fields.entropy_bound) out.diffusion.entropy_bound = *fields.entropy_bound;
    if (fields.confidence_threshold) out.diffusion.confidence_threshold = *fields.confidence_threshold;
    if (fields.sampler) out.diffusion.sampler = *fields.sampler;
    out.canvas_length = fields.canvas_length.value_or(0);
    out.exact = fields.exact.value_or(options_.exact);
    out.diffusion.temperature = request_.temperature;
    out.diffusion.seed = seed_;
    out.attempt = attempt_;
    out.pins = pins();
    if (options_.deadline_seconds > 0)
        out.deadline = begun_ + std::chrono::seconds(options_.deadline_seconds);
    reply::answer_guards(out, model_->tokenizer, starts_in_thought_);
    if (take_ == 0) out.continuation = continuation_;
    if (request_.api != Api::completions) out.next_prompt = next_prompt();
    return out;
}

std::function<std::vector<std::int32_t>(std::span<const std::int32_t>, const engine::EndEvent&)>
Turn::next_prompt() const {
    // History has an answer as `<|turn>model`, its text trimmed, `<turn|>`; behind tool results it is another
    // form, and a prompt that the calls are part of is left as it is.
    const std::vector<std::int32_t> head = model_->tokenizer.encode("<|turn>model\n", text::Specials::parse);
    if (log_.size() < head.size() || !std::equal(head.rbegin(), head.rend(), log_.rbegin())) return nullptr;
    engine::Request shape;
    shape.exact = options_.exact;
    return [tokenizer = model_->tokenizer, prompt = log_, stops = request_.stops,
            options = reply::parser_options(shape, false)](std::span<const std::int32_t> ids,
                                                           const engine::EndEvent& end) {
        reply::ReplyText reader(tokenizer, options, stops);
        reader.feed(ids);
        reader.finish(end.stop_id);
        const text::ParsedReply& whole = reader.whole();
        if (!whole.tool_calls.empty() || !whole.broken_calls.empty()) return std::vector<std::int32_t>();
        const std::string content = whole.content.value_or("");
        std::string said(text::python_strip(content));
        std::vector<std::int32_t> out = prompt;
        const std::vector<text::Segment> turn = {{std::move(said), true}, {"<turn|>\n", false}};
        const std::vector<std::int32_t> rest = tokenizer.encode(turn);
        out.insert(out.end(), rest.begin(), rest.end());
        return out;
    };
}

// So that the results of these calls find the engine where it is. Only where its log ends with the marker
// that results begin with, and holds nothing that the client has not seen.
void Turn::remember_round(const TakeEnd& end) {
    const bool as_shown = end.cut == Cut::none && !options_.tool_repair && end.broken_calls.empty();
    const std::int32_t opens = model_->tokenizer.id_of("<|tool_response>");
    if (!as_shown || end.engine.stop_id != opens || request_.api == Api::completions) return;
    model_->rounds->remember(round_key(request_.chat.messages, request_.chat.tools,
                                       request_.chat.enable_thinking.value_or(false), calls_),
                             last_id_);
}

// The field that an error of the engine is about: what has been asked for besides the prompt, where without
// it there would be none.
std::string_view Turn::to_blame(const Error& error, int canvas, bool shrink) const {
    const auto fits = [&](int with_canvas) {
        return engine::plan_budget(static_cast<int>(log_.size()), 0, with_canvas, shrink,
                                   model_->port->context_limit())
            .ok();
    };
    if (error.kind == ErrorKind::context_length) {
        if (!fits(canvas) && fits(model_->port->canvas_length())) return "diffusion.canvas_length";
        if (fits(canvas) && !request_.max_tokens_field.empty()) return request_.max_tokens_field;
    }
    return conversation_field(request_.api);
}

std::optional<ApiError> Turn::submit() {
    engine::Request request = engine_request();
    const int canvas = request.canvas_length > 0 ? request.canvas_length : model_->port->canvas_length();
    if (static_cast<int>(request.pins.size()) >= canvas) {
        over_ = true;
        return ApiError{
            .message = fmt::format("The name of the tool takes {} tokens, and a canvas of {} has no "
                                   "room for its arguments; choose a longer diffusion.canvas_length.",
                                   request.pins.size(), canvas),
            .field = "tool_choice"};
    }
    const bool shrink = request.shrink_canvas;
    TakeOptions options;
    options.parser = reply::parser_options(request, starts_in_thought_);
    options.stops = request_.stops;
    options.one_call = !request_.parallel_tool_calls;
    options.must_call = must_call_;
    options.after_thought = after_thought_;
    options.drafts = request_.stream && request_.diffusion.drafts;
    const bool last = attempt_ + 1 >= kCallAttempts;
    if (options_.tool_validate || options_.tool_repair || must_call_) {
        // The last attempt is taken as it is, if it is a call at all.
        const std::weak_ptr<Turn> turn = weak_from_this();
        const Value tools = request_.chat.tools;
        const bool validate = (options_.tool_validate || options_.tool_repair) && !last;
        const std::string name = request_.tool_choice.kind == ToolChoice::Kind::named && must_call_
                                     ? request_.tool_choice.name
                                     : "";
        if (validate || must_call_) {
            options.check = [tools, validate, name](const text::ToolCall& call) -> Status {
                if (!name.empty() && call.name != name)
                    return Error{ErrorKind::invalid, fmt::format("the call is not one of {}", name)};
                return validate ? check_call(tools, call) : check_name(tools, call);
            };
        }
    }
    if (options.drafts) draft_reader_.emplace(model_->tokenizer, options.parser, request_.stops);
    ++take_;
    auto listener = std::make_shared<Listener>(weak_from_this(), take_, post_);
    auto take = std::make_shared<Take>(model_->tokenizer, std::move(options), std::move(listener));
    Result<engine::RequestId> id = model_->port->submit(std::move(request), std::move(take));
    if (id) {
        running_ = last_id_ = id.value();
        return std::nullopt;
    }
    over_ = true;
    ApiError error = api_error_of(id.error(), to_blame(id.error(), canvas, shrink));
    if (id.error().kind == ErrorKind::overloaded) error.retry_after = model_->port->retry_after_seconds();
    return error;
}

}  // namespace dgemma::server
