#include "server/turn.h"

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "server/schema.h"
#include "server/turn_listener.h"

namespace dgemma::server {

using text::ParserEvent;

namespace {

std::mt19937_64& generator() {
    thread_local std::mt19937_64 engine = [] {
        std::random_device device;
        std::seed_seq seed{device(), device(), device(), device()};
        return std::mt19937_64(seed);
    }();
    return engine;
}

// Of a request without one. Small enough for clients whose numbers are doubles.
std::uint64_t random_seed() { return generator()() >> 11; }

Value real(double number) { return Value::number(number); }

}  // namespace

std::string random_name(std::size_t length) {
    constexpr std::string_view letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::uniform_int_distribution<std::size_t> any(0, letters.size() - 1);
    std::string out;
    for (std::size_t i = 0; i < length; ++i) out += letters[any(generator())];
    return out;
}

Turn::Turn(std::shared_ptr<ServedModel> model, GenerationRequest request, reply::Prompt prompt,
           const ReplyHead& head, TurnOptions options, Post post, std::function<void()> on_change,
           engine::Continuation continuation)
    : model_(std::move(model)),
      request_(std::move(request)),
      options_(options),
      post_(std::move(post)),
      on_change_(std::move(on_change)),
      writer_(make_writer(request_, head)),
      log_(std::move(prompt.ids)),
      prompt_tokens_(log_.size()),
      starts_in_thought_(prompt.ends_in_thought),
      seed_(request_.seed ? *request_.seed : random_seed()),
      must_call_(request_.tool_choice.kind == ToolChoice::Kind::required ||
                 request_.tool_choice.kind == ToolChoice::Kind::named),
      after_thought_(must_call_ && (starts_in_thought_ || request_.chat.enable_thinking.value_or(false))),
      continuation_(std::move(continuation)) {
    usage_.prompt_tokens = static_cast<int>(prompt_tokens_);
}

std::optional<ApiError> Turn::begin() { return submit(); }

void Turn::cancel() {
    if (over_) return;
    over_ = true;
    if (running_) model_->port->cancel(*running_);
}

void Turn::on_started(const engine::StartEvent& event) {
    if (started_) return;
    started_ = true;
    usage_.prompt_tokens = event.prompt_tokens;
    usage_.cached_tokens = std::min(event.reused_tokens, usage_.prompt_tokens);
    if (event.raw_log)
        usage_.raw_log_tokens = usage_.prompt_tokens - static_cast<int>(continuation_.suffix.size());
    queued_ms_ = event.queued_ms;
    reuse_ = std::string(engine::name_of(event.reuse));
    writer_->start(usage_);
    on_change_();
}

void Turn::on_step(const TakeStep& step) {
    if (!draft_reader_ || drafts_held_) return;
    reply::ReplyText reader = *draft_reader_;
    std::string said, thought;
    const auto collect = [&](const std::vector<ParserEvent>& pieces) {
        for (const ParserEvent& piece : pieces)
            (piece.kind == ParserEvent::Kind::reasoning ? thought : said) += piece.text;
    };
    collect(reader.feed(step.draft));
    collect(reader.finish(std::nullopt));
    writer_->draft(object({{"block", whole(step.block)},
                           {"step", whole(step.step)},
                           {"max_steps", whole(step.max_steps)},
                           {"accepted", whole(step.accepted)},
                           {"mean_entropy", real(step.mean_entropy)},
                           {"content", string(said)},
                           {"reasoning_content", string(thought)}}));
    on_change_();
}

void Turn::show(const ParserEvent& piece) {
    switch (piece.kind) {
        case ParserEvent::Kind::content:
            return writer_->content(piece.text);
        case ParserEvent::Kind::reasoning:
            return writer_->reasoning(piece.text);
        case ParserEvent::Kind::tool_call:
            calls_.push_back(piece.call);
            if (options_.tool_validate || options_.tool_repair) {
                if (const Status fits = check_call(request_.chat.tools, piece.call); !fits)
                    invalid_.push_back(string(fits.error().message));
            }
            return writer_->call({random_name(24), piece.call.name, text::to_json(piece.call.arguments)});
        case ParserEvent::Kind::stop:
            return;
    }
}

void Turn::on_pieces(const std::vector<ParserEvent>& pieces, const std::vector<std::int32_t>& ids) {
    if (draft_reader_) draft_reader_->feed(ids);
    for (const ParserEvent& piece : pieces) show(piece);
    if (!pieces.empty()) on_change_();
}

void Turn::on_failed(const Error& error) { fail(api_error_of(error, "")); }

void Turn::fail(ApiError error) {
    failure_ = std::move(error);
    over_ = true;
    running_.reset();
    if (request_.stream) writer_->fail(*failure_);
    on_change_();
}

void Turn::add_stats(const TakeEnd& end) {
    usage_.completion_tokens += static_cast<int>(end.ids.size());
    usage_.reasoning_tokens += end.reasoning_tokens;
    for (const engine::BlockStats& block : end.engine.stats.blocks) {
        Value json = object({{"steps", whole(block.steps)}, {"stop_rule", string(block.stop_rule)}});
        if (block.attempts > 1) json.set("attempts", whole(block.attempts));
        Value::Array guards;
        for (const std::string& guard : block.guards) guards.push_back(string(guard));
        if (!guards.empty()) json.set("guards", list(std::move(guards)));
        blocks_.push_back(std::move(json));
    }
    steps_ += end.engine.stats.steps;
    prefill_ms_ += end.engine.stats.prefill_ms;
    denoise_ms_ += end.engine.stats.denoise_ms;
    for (const std::string& name : end.engine.stats.approximations) {
        if (std::find(approximations_.begin(), approximations_.end(), string(name)) == approximations_.end())
            approximations_.push_back(string(name));
    }
    for (const std::string& reason : end.broken_calls) broken_.push_back(string(reason));
}

void Turn::on_ended(TakeEnd end) {
    running_.reset();
    const bool cancelled = end.engine.reason == engine::FinishReason::cancelled;
    add_stats(end);
    if (cancelled) {
        return fail({.status = 503, .code = "server_shutdown", .message = "The request was cancelled."});
    }
    if (end.calls > 0) must_call_ = false;
    const bool no_time = end.engine.reason == engine::FinishReason::length ||
                         end.engine.reason == engine::FinishReason::deadline;
    if (end.cut == Cut::thought_over) {
        log_.insert(log_.end(), end.ids.begin(), end.ids.end());
        if (end.in_thought) log_.push_back(model_->tokenizer.id_of("<channel|>"));
        after_thought_ = false;
        return go_on();
    }
    const bool none_made = must_call_ && end.cut == Cut::none && !no_time;
    if (none_made) end.bad_reason = "the reply holds no call";
    if ((end.cut == Cut::bad_call && !(no_time && end.engine.stop_id)) || none_made) return take_again(end);
    finish(end);
}

// A call that must be made again, because it does not parse or does not fit.
void Turn::take_again(TakeEnd& end) {
    // At the limit of tokens another attempt would be cut as well.
    const bool cut_off = end.engine.reason == engine::FinishReason::length && end.bad_name.empty();
    if (attempt_ + 1 < kCallAttempts && !cut_off) {
        ++attempt_;
        log_.insert(log_.end(), end.ids.begin(), end.ids.end());
        after_thought_ = false;  // the model called without one, and not what it should have
        if (options_.tool_repair && !end.bad_ids.empty()) {
            log_.insert(log_.end(), end.bad_ids.begin(), end.bad_ids.end());
            const std::int32_t close = model_->tokenizer.id_of("<tool_call|>");
            if (log_.back() != close) log_.push_back(close);
            const std::vector<text::Segment> response = {
                {"<|tool_response>response:", false},
                {end.bad_name.empty() ? "unknown" : end.bad_name, true},
                {"{error:<|\"|>", false},
                {end.bad_reason, true},
                {"<|\"|>}<tool_response|>", false}};
            const std::vector<std::int32_t> ids = model_->tokenizer.encode(response);
            log_.insert(log_.end(), ids.begin(), ids.end());
        }
        return go_on();
    }
    if (must_call_) {
        if (cut_off) {
            // Nothing comes behind what was begun of the call, so it is the reply's, if nothing to show.
            usage_.completion_tokens += static_cast<int>(end.bad_ids.size());
            return finish(end);
        }
        return fail(
            {.status = 500,
             .code = "tool_call_failed",
             .message = fmt::format("The model made no tool call that can be read in {} attempts ({}); try "
                                    "another seed or a simpler schema.",
                                    kCallAttempts, end.bad_reason)});
    }
    // Given up: what there is is shown, with the reason beside it.
    for (const ParserEvent& piece : end.bad) {
        if (piece.kind != ParserEvent::Kind::tool_call) broken_.push_back(string(end.bad_reason));
        show(piece);
    }
    finish(end);
}

void Turn::go_on() {
    starts_in_thought_ = false;
    if (request_.max_tokens > 0 && usage_.completion_tokens >= request_.max_tokens) {
        TakeEnd end;
        end.engine.reason = engine::FinishReason::length;
        return finish(end);
    }
    if (auto error = submit()) {
        over_ = false;
        fail(*std::move(error));
    }
}

void Turn::remember(ResponseStore& store) {
    if (request_.api == Api::responses && request_.store)
        store.put(writer_->id_for_store(), request_.conversation, writer_->items(), writer_->reply());
}

void Turn::finish(const TakeEnd& end) {
    ReplyEnd out;
    if (!calls_.empty()) remember_round(end);
    if (!calls_.empty())
        out.finish = Finish::tool_calls;
    else if (end.cut == Cut::stop_string)
        out.finish = Finish::stop_string;
    else if (end.engine.reason == engine::FinishReason::length)
        out.finish = Finish::length;
    else if (end.engine.reason == engine::FinishReason::deadline)
        out.finish = Finish::deadline;
    out.stop_string = end.stop_string;
    out.usage = usage_;
    out.diffusion = object({{"seed", big(seed_)},
                            {"reason", string(name_of(out.finish))},
                            {"steps", whole(steps_)},
                            {"blocks", list(std::move(blocks_))},
                            {"reuse", string(reuse_)},
                            {"approximations", list(std::move(approximations_))},
                            {"queued_ms", real(queued_ms_)},
                            {"prefill_ms", real(prefill_ms_)},
                            {"denoise_ms", real(denoise_ms_)}});
    if (take_ > 1) out.diffusion.set("takes", whole(take_));
    if (!broken_.empty()) out.diffusion.set("broken_calls", list(std::move(broken_)));
    if (!invalid_.empty()) out.diffusion.set("invalid_calls", list(std::move(invalid_)));
    over_ = true;
    writer_->end(out);
    on_change_();
}

}  // namespace dgemma::server
