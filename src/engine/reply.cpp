#include "engine/reply.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "diffusion/finalise.h"
#include "diffusion/guards.h"
#include "engine/loaded_model.h"

namespace dgemma::engine {

using diffusion::Guard;

namespace {

constexpr float everything = std::numeric_limits<float>::infinity();
// Attempts at a whole reply and attempts at one of its blocks draw from different streams of the same seed.
constexpr int most_attempts = 1000;
constexpr int block_attempts = 1 << 16;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void note(std::vector<std::string>& guards, std::string_view name) {
    if (std::find(guards.begin(), guards.end(), name) == guards.end()) guards.emplace_back(name);
}

void note(std::vector<std::string>& guards, Guard guard) { note(guards, diffusion::name_of(guard)); }

}  // namespace

diffusion::Options default_options(const model::GenerationConfig& g) {
    diffusion::Options out;
    out.sampler = g.sampler == model::SamplerKind::confidence_threshold
                      ? diffusion::Sampler::confidence_threshold
                      : diffusion::Sampler::entropy_bound;
    out.max_steps = g.max_denoising_steps;
    out.entropy_bound = g.entropy_bound;
    out.threshold = g.threshold;
    out.t_min = g.t_min;
    out.t_max = g.t_max;
    out.stability_threshold = g.stability_threshold;
    out.confidence_threshold = g.confidence_threshold;
    return out;
}

Result<ReplySetup> check_request(const LoadedModel& loaded, const Request& request) {
    const int vocab = loaded.config.text.vocab_size;
    if (request.prompt.empty()) {
        return Error{ErrorKind::usage, "the prompt is empty: give at least one token"};
    }
    for (const std::int32_t id : request.prompt) {
        if (id < 0 || id >= vocab) {
            return Error{ErrorKind::usage, fmt::format("token id {} is outside the model's vocabulary of {}: "
                                                       "the tokenizer belongs to another model",
                                                       id, vocab)};
        }
    }
    if (request.max_tokens < 0 || request.canvas_length < 0) {
        return Error{ErrorKind::usage,
                     "max_tokens and canvas_length cannot be negative; 0 means the default"};
    }
    if (request.attempt < 0 || request.attempt > most_attempts) {
        return Error{ErrorKind::usage, fmt::format("attempt {} is outside 0 to {}: choose another seed",
                                                   request.attempt, most_attempts)};
    }
    ReplySetup setup;
    setup.canvas_length = request.canvas_length > 0 ? request.canvas_length : loaded.config.canvas_length;
    DGEMMA_TRY(setup.budget, plan_budget(static_cast<int>(request.prompt.size()), request.max_tokens,
                                         setup.canvas_length, request.shrink_canvas, loaded.context));
    DGEMMA_CHECK(diffusion::check(request.diffusion));
    setup.stop_ids = request.stop_ids;
    if (setup.stop_ids.empty()) {
        const std::vector<int>& own =
            loaded.generation.eos_ids.empty() ? loaded.config.eos_ids : loaded.generation.eos_ids;
        setup.stop_ids.assign(own.begin(), own.end());
    }
    return setup;
}

Reply::Reply(model::Model& model, LogitsPool& pool, Session& session, const Request& request,
             ReplySetup setup, Sink& sink)
    : model_(model),
      pool_(pool),
      session_(session),
      request_(request),
      setup_(std::move(setup)),
      sink_(sink),
      options_(request.diffusion),
      soft_cutoff_(request.exact ? everything : request.soft_cutoff),
      noise_(request.noise) {
    if (request.exact) options_.guards = diffusion::Guards::none();
    if (!model.backend().set_soft_cutoff(soft_cutoff_)) soft_cutoff_ = everything;
    if (soft_cutoff_ != everything) stats_.approximations.emplace_back("sparse_self_conditioning");
    if (noise_ == nullptr) {
        own_noise_ = diffusion::make_noise(options_.noise, options_.seed, model.config().text.vocab_size);
        noise_ = own_noise_.get();
    }
}

void Reply::begin(const Kept& kept, Reuse reuse, std::string_view approximation) {
    stats_.prompt_tokens = static_cast<int>(request_.prompt.size());
    stats_.reused_tokens = static_cast<int>(kept.reused);
    stats_.reuse = reuse;
    if (!approximation.empty()) stats_.approximations.emplace_back(approximation);
    sink_.on_prefill(
        {.done = stats_.reused_tokens, .total = stats_.prompt_tokens, .reused = stats_.reused_tokens});
    if (session_.pending().empty()) {
        prompt_encoded_ = true;
        phase_ = Phase::denoise;
    }
}

bool Reply::poll() {
    if (phase_ == Phase::ended) return true;
    if (request_.cancel != nullptr && request_.cancel->load()) {
        stop(FinishReason::cancelled);
    } else if (request_.deadline && Clock::now() >= *request_.deadline) {
        stop(FinishReason::deadline);
    }
    return phase_ == Phase::ended;
}

void Reply::stop(FinishReason reason) {
    if (phase_ != Phase::ended) finish(reason, std::nullopt);
}

void Reply::abandon() {
    phase_ = Phase::ended;
    session_.end();
}

void Reply::encoded(double milliseconds) {
    assert(phase_ == Phase::encode);
    stats_.prefill_ms += milliseconds;
    if (!prompt_encoded_) {
        sink_.on_prefill({.done = static_cast<int>(session_.cache().length()),
                          .total = stats_.prompt_tokens,
                          .reused = stats_.reused_tokens});
    }
    if (session_.pending().empty()) {
        prompt_encoded_ = true;
        phase_ = Phase::denoise;
    }
}

Status Reply::start_attempt() {
    const model::Config& config = model_.config();
    const int full = diffusion::canvas_length(setup_.canvas_length, remaining(), request_.shrink_canvas);
    // A pinned position must stay on the canvas, so a request with pins is not shrunk.
    const bool shrink = number_ == 0 && request_.pins.empty();
    const int length = shrink ? diffusion::reroll_canvas_length(full, attempt_) : full;
    const diffusion::Canvas shape{.length = length,
                                  .vocabulary = config.text.vocab_size,
                                  .pad_id = config.pad_id,
                                  .filler_id = config.text.vocab_size - 1,
                                  .pins = number_ == 0 ? request_.pins : std::vector<diffusion::Pin>{}};
    DGEMMA_TRY(diffusion::Denoiser denoiser,
               diffusion::Denoiser::start(options_, shape, *noise_,
                                          {number_, request_.attempt * block_attempts + attempt_}));
    if (logits_ == nullptr || logits_->rows() != length) {
        pool_.give_back(std::move(logits_));
        DGEMMA_TRY(logits_, pool_.take(length));
    }
    denoiser_.emplace(std::move(denoiser));
    attempt_stats_ = {};
    return {};
}

Result<model::Canvas> Reply::canvas() {
    assert(phase_ == Phase::denoise && session_.pending().empty());
    if (!denoiser_) {
        if (attempt_ == 0) block_start_ = Clock::now();
        DGEMMA_CHECK(start_attempt());
    }
    step_start_ = Clock::now();
    input_.assign(denoiser_->canvas().begin(), denoiser_->canvas().end());
    return model::Canvas{.cache = &session_.cache(),
                         .ids = input_,
                         .temperature = denoiser_->temperature(),
                         .logits = logits_.get(),
                         .self_condition = denoiser_->step() > 0};
}

Status Reply::denoised(const model::Canvas& pass) {
    const int step = denoiser_->step();
    Result<diffusion::StepOutcome> advanced = denoiser_->advance(*logits_);
    if (!advanced) {
        Error error = std::move(advanced).error();
        if (error.kind == ErrorKind::non_finite) {
            error.message += pass.broken_layer
                                 ? fmt::format("; it first appeared in layer {}", *pass.broken_layer)
                                 : std::string("; it first appeared in the head, after the last layer");
        }
        return error;
    }
    const diffusion::StepOutcome& outcome = advanced.value();
    ++attempt_stats_.steps;
    for (const Guard guard : outcome.guards) note(attempt_stats_.guards, guard);
    sink_.on_step({.block = number_,
                   .attempt = attempt_,
                   .step = step,
                   .max_steps = options_.max_steps,
                   .temperature = pass.temperature,
                   .mean_entropy = outcome.mean_entropy,
                   .accepted = outcome.accepted,
                   .stable = outcome.stable,
                   .confident = outcome.confident,
                   .milliseconds = milliseconds_since(step_start_),
                   .input = input_,
                   .argmax = denoiser_->committed(),
                   .accept = outcome.accept});
    if (!outcome.done) return {};
    attempt_stats_.stop_rule = diffusion::name_of(outcome.stop_rule);
    finish_attempt(outcome.commit_length);
    return {};
}

void Reply::finish_attempt(int commit_length) {
    const bool settled = !diffusion::never_settled(denoiser_->mean_entropies(), options_.max_steps);
    Block block;
    block.stats = std::exchange(attempt_stats_, {});
    judge(block, commit_length);
    denoiser_.reset();
    steps_ += block.stats.steps;
    for (const std::string& name : block.stats.guards) note(guards_, name);
    if (const auto guard = wants_reroll(block, settled)) {
        note(guards_, *guard);
        ++attempt_;
        return;
    }
    if (options_.guards.nonconvergence_reroll && !settled) block.end_of_turn = true;
    block.stats.attempts = attempt_ + 1;
    block.stats.guards = std::move(guards_);
    block.milliseconds = milliseconds_since(block_start_);
    stats_.steps += steps_;
    stats_.denoise_ms += block.milliseconds;
    guards_.clear();
    steps_ = attempt_ = 0;
    deliver(std::move(block));
}

// What of the last pass is committed, and where the reply ends in it.
void Reply::judge(Block& block, int commit_length) const {
    const std::span<const std::int32_t> canvas = denoiser_->committed();
    block.canvas.assign(canvas.begin(), canvas.end());
    block.ids.assign(canvas.begin(), canvas.begin() + commit_length);

    std::vector<std::int32_t> ends = setup_.stop_ids;
    ends.push_back(model_.config().pad_id);
    ends.push_back(model_.config().text.vocab_size - 1);
    std::optional<int> cut;
    if (options_.guards.confidence_trim) {
        cut = diffusion::confidence_trim(block.ids, denoiser_->last_stats(), ends);
        if (cut) note(block.stats.guards, Guard::confidence_trim);
    }
    if (options_.guards.hard_trim) {
        const auto hard =
            diffusion::hard_trim(block.ids, denoiser_->last_stats(), ends, options_.guards.hard_trim_floor);
        if (hard && (!cut || *hard < *cut)) {
            cut = hard;
            note(block.stats.guards, Guard::hard_trim);
        }
    }
    // A cut at the very beginning would commit nothing and come to the same place again.
    if (cut && *cut > 0) block.ids.resize(static_cast<std::size_t>(*cut));
    find_stop(block);
    if (options_.guards.whitespace_stop && request_.is_space &&
        diffusion::is_whitespace(std::span(block.ids).first(block.stop.value_or(block.ids.size())),
                                 request_.is_space)) {
        note(block.stats.guards, Guard::whitespace_stop);
        block.end_of_turn = true;
    }
}

void Reply::find_stop(Block& block) const {
    std::vector<std::int32_t> reply = delivered_;
    const std::vector<std::int32_t>& stops = setup_.stop_ids;
    const auto stops_at = [&](std::int32_t id) {
        return std::find(stops.begin(), stops.end(), id) != stops.end();
    };
    // A canvas is filled up behind the end of a reply. Where nothing but stop ids follows, an open quote was
    // forgotten: as content they would go on, block after block, to the end of the context.
    const auto filling = static_cast<std::size_t>(
        std::find_if_not(block.ids.rbegin(), block.ids.rend(), stops_at).base() - block.ids.begin());
    const std::size_t filled_from = block.ids.size() - filling >= 2 ? filling : block.ids.size();
    for (std::size_t i = 0; i < block.ids.size(); ++i) {
        if (stops_at(block.ids[i])) {
            const bool content = i != filled_from && options_.guards.tool_aware_stop &&
                                 request_.inside_quote && request_.inside_quote(reply);
            if (!content) {
                block.stop = i;
                return;
            }
            note(block.stats.guards, Guard::tool_aware_stop);
        }
        reply.push_back(block.ids[i]);
    }
}

std::optional<Guard> Reply::wants_reroll(const Block& block, bool settled) const {
    if (number_ == 0 && block.stop && attempt_ < options_.guards.empty_reply_rerolls) {
        const std::span<const std::int32_t> reply(block.ids.data(), *block.stop);
        if (request_.shows_nothing ? request_.shows_nothing(reply) : reply.empty())
            return Guard::empty_reply_reroll;
    }
    if (options_.guards.nonconvergence_reroll && !settled && attempt_ == 0)
        return Guard::nonconvergence_reroll;
    return std::nullopt;
}

// The block is final: tell of it, and end the reply or have the block encoded for the next one.
void Reply::deliver(Block block) {
    const std::size_t wanted =
        std::min(block.stop.value_or(block.ids.size()), static_cast<std::size_t>(remaining()));
    const bool stopped = block.stop.has_value() && *block.stop == wanted;
    const std::span<const std::int32_t> ids(block.ids.data(), wanted);
    delivered_.insert(delivered_.end(), ids.begin(), ids.end());
    block.stats.trimmed = static_cast<int>(block.canvas.size() - wanted);
    stats_.blocks.push_back(block.stats);
    std::optional<std::int32_t> stop_id;
    if (stopped) stop_id = block.ids[*block.stop];
    const BlockVerdict verdict = sink_.on_block({.block = number_,
                                                 .ids = ids,
                                                 .canvas = block.canvas,
                                                 .stop_id = stop_id,
                                                 .steps = block.stats.steps,
                                                 .attempts = block.stats.attempts,
                                                 .trimmed = block.stats.trimmed,
                                                 .stop_rule = block.stats.stop_rule,
                                                 .guards = block.stats.guards,
                                                 .milliseconds = block.milliseconds});
    if (verdict == BlockVerdict::cancel) return finish(FinishReason::cancelled, std::nullopt);
    if (request_.cancel != nullptr && request_.cancel->load())
        return finish(FinishReason::cancelled, std::nullopt);
    if (verdict == BlockVerdict::stop_string) return finish(FinishReason::stop_string, std::nullopt);
    if (stopped || block.end_of_turn) return finish(FinishReason::stop, stop_id);
    if (remaining() <= 0) return finish(FinishReason::length, std::nullopt);
    // The last block of a reply is never encoded, this one is.
    const std::size_t kept = block.ids.size();
    session_.propose(std::move(block.ids));
    session_.commit(kept);
    ++number_;
    phase_ = Phase::encode;
}

void Reply::finish(FinishReason reason, std::optional<std::int32_t> stop_id) {
    phase_ = Phase::ended;
    session_.end();
    stats_.steps += steps_ + attempt_stats_.steps;
    stats_.output_tokens = static_cast<int>(delivered_.size());
    stats_.total_ms = milliseconds_since(start_);
    end_ = EndEvent{.reason = reason, .stop_id = stop_id, .stats = std::move(stats_)};
    sink_.on_end(*end_);
}

}  // namespace dgemma::engine
