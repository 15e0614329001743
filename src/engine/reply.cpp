#include "engine/reply.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "diffusion/finalise.h"
#include "diffusion/guards.h"

namespace dgemma::engine {

using diffusion::Guard;

namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void note(std::vector<std::string>& guards, Guard guard) {
    const std::string name(diffusion::name_of(guard));
    if (std::find(guards.begin(), guards.end(), name) == guards.end()) guards.push_back(name);
}

}  // namespace

Reply::Reply(model::Model& model, model::KvCache& cache, const Request& request,
             std::vector<std::int32_t> stop_ids, const Budget& budget, Sink& sink)
    : model_(model),
      cache_(cache),
      request_(request),
      stop_ids_(std::move(stop_ids)),
      budget_(budget),
      sink_(sink),
      options_(request.diffusion),
      noise_(request.noise) {
    if (request.exact) options_.guards = diffusion::Guards::none();
    const float everything = std::numeric_limits<float>::infinity();
    const float cutoff = request.exact ? everything : request.soft_cutoff;
    if (model.backend().set_soft_cutoff(cutoff)) {
        if (cutoff != everything) stats_.approximations.emplace_back("sparse_self_conditioning");
    } else {
        model.backend().set_soft_cutoff(everything);
    }
    if (noise_ == nullptr) {
        own_noise_ = diffusion::make_noise(options_.noise, options_.seed, model.config().text.vocab_size);
        noise_ = own_noise_.get();
    }
}

Result<EndEvent> Reply::run() {
    DGEMMA_CHECK(prefill());
    if (cancelled()) return end(FinishReason::cancelled, std::nullopt);
    for (int number = 0;; ++number) {
        const int remaining = budget_.max_tokens - static_cast<int>(delivered_.size());
        DGEMMA_TRY(Block block, make_block(number, remaining));
        if (block.canvas.empty()) return end(FinishReason::cancelled, std::nullopt);

        const std::size_t wanted =
            std::min(block.stop.value_or(block.ids.size()), static_cast<std::size_t>(remaining));
        const bool stopped = block.stop.has_value() && *block.stop == wanted;
        const std::span<const std::int32_t> ids(block.ids.data(), wanted);
        delivered_.insert(delivered_.end(), ids.begin(), ids.end());
        block.stats.trimmed = static_cast<int>(block.canvas.size() - wanted);
        stats_.blocks.push_back(block.stats);
        std::optional<std::int32_t> stop_id;
        if (stopped) stop_id = block.ids[*block.stop];
        const BlockVerdict verdict = sink_.on_block({.block = number,
                                                     .ids = ids,
                                                     .canvas = block.canvas,
                                                     .stop_id = stop_id,
                                                     .steps = block.stats.steps,
                                                     .attempts = block.stats.attempts,
                                                     .trimmed = block.stats.trimmed,
                                                     .stop_rule = block.stats.stop_rule,
                                                     .guards = block.stats.guards,
                                                     .milliseconds = block.milliseconds});
        if (verdict == BlockVerdict::cancel || cancelled()) return end(FinishReason::cancelled, std::nullopt);
        if (verdict == BlockVerdict::stop_string) return end(FinishReason::stop_string, std::nullopt);
        if (stopped || block.end_of_turn) return end(FinishReason::stop, stop_id);
        if (static_cast<int>(delivered_.size()) >= budget_.max_tokens)
            return end(FinishReason::length, std::nullopt);

        const auto start = Clock::now();
        DGEMMA_CHECK(model_.encode(cache_, block.ids));  // the last block is never encoded
        stats_.prefill_ms += milliseconds_since(start);
    }
}

Status Reply::prefill() {
    const auto start = Clock::now();
    cache_.clear();
    const std::span<const std::int32_t> prompt = request_.prompt;
    stats_.prompt_tokens = static_cast<int>(prompt.size());
    sink_.on_prefill({.done = 0, .total = stats_.prompt_tokens});
    for (std::size_t done = 0; done < prompt.size() && !cancelled();) {
        const std::size_t count = std::min(prompt.size() - done, static_cast<std::size_t>(cache_.chunk()));
        DGEMMA_CHECK(model_.encode(cache_, prompt.subspan(done, count)));
        done += count;
        sink_.on_prefill({.done = static_cast<int>(done), .total = stats_.prompt_tokens});
    }
    stats_.prefill_ms += milliseconds_since(start);
    return {};
}

// Returns a block without a canvas when cancelled.
Result<Reply::Block> Reply::make_block(int number, int remaining) {
    const auto start = Clock::now();
    const int canvas = request_.canvas_length > 0 ? request_.canvas_length : model_.config().canvas_length;
    const int full = diffusion::canvas_length(canvas, remaining, request_.shrink_canvas);
    std::vector<std::string> guards;
    int steps = 0;
    for (int attempt = 0;; ++attempt) {
        // A pinned position must stay on the canvas, so a request with pins is not shrunk.
        const bool shrink = number == 0 && request_.pins.empty();
        Block block;
        DGEMMA_CHECK(
            denoise(block, number, attempt, shrink ? diffusion::reroll_canvas_length(full, attempt) : full));
        steps += block.stats.steps;
        if (block.canvas.empty()) return block;
        for (const std::string& name : block.stats.guards) {
            if (std::find(guards.begin(), guards.end(), name) == guards.end()) guards.push_back(name);
        }
        if (const auto guard = wants_reroll(block, number, attempt, settled_)) {
            note(guards, *guard);
            continue;
        }
        if (options_.guards.nonconvergence_reroll && !settled_) block.end_of_turn = true;
        stats_.steps += steps;
        block.stats.attempts = attempt + 1;
        block.stats.guards = std::move(guards);
        block.milliseconds = milliseconds_since(start);
        stats_.denoise_ms += block.milliseconds;
        return block;
    }
}

Status Reply::denoise(Block& block, int number, int attempt, int length) {
    const model::Config& config = model_.config();
    const diffusion::Canvas shape{.length = length,
                                  .vocabulary = config.text.vocab_size,
                                  .pad_id = config.pad_id,
                                  .filler_id = config.text.vocab_size - 1,
                                  .pins = number == 0 ? request_.pins : std::vector<diffusion::Pin>{}};
    DGEMMA_TRY(diffusion::Denoiser denoiser,
               diffusion::Denoiser::start(options_, shape, *noise_, {number, attempt}));
    if (logits_ == nullptr || logits_rows_ != length) {
        DGEMMA_TRY(logits_, model_.backend().make_logits(length, config.text.vocab_size));
        logits_rows_ = length;
    }
    for (;;) {
        if (cancelled()) return {};
        const auto start = Clock::now();
        const int step = denoiser.step();
        const float temperature = denoiser.temperature();
        const std::vector<std::int32_t> input(denoiser.canvas().begin(), denoiser.canvas().end());
        model::Canvas canvas{.cache = &cache_,
                             .ids = input,
                             .temperature = temperature,
                             .logits = logits_.get(),
                             .self_condition = step > 0};
        DGEMMA_CHECK(model_.denoise(std::span(&canvas, 1)));
        Result<diffusion::StepOutcome> advanced = denoiser.advance(*logits_);
        if (!advanced) {
            Error error = std::move(advanced).error();
            if (error.kind == ErrorKind::non_finite) {
                error.message += canvas.broken_layer
                                     ? fmt::format("; it first appeared in layer {}", *canvas.broken_layer)
                                     : std::string("; it first appeared in the head, after the last layer");
            }
            return error;
        }
        const diffusion::StepOutcome& outcome = advanced.value();
        ++block.stats.steps;
        for (const Guard guard : outcome.guards) note(block.stats.guards, guard);
        sink_.on_step({.block = number,
                       .attempt = attempt,
                       .step = step,
                       .max_steps = options_.max_steps,
                       .temperature = temperature,
                       .mean_entropy = outcome.mean_entropy,
                       .accepted = outcome.accepted,
                       .stable = outcome.stable,
                       .confident = outcome.confident,
                       .milliseconds = milliseconds_since(start),
                       .input = input,
                       .argmax = denoiser.committed(),
                       .accept = outcome.accept});
        if (!outcome.done) continue;
        block.stats.stop_rule = diffusion::name_of(outcome.stop_rule);
        settled_ = !diffusion::never_settled(denoiser.mean_entropies(), options_.max_steps);
        judge(block, denoiser, outcome.commit_length);
        return {};
    }
}

// What of the last pass is committed, and where the reply ends in it.
void Reply::judge(Block& block, const diffusion::Denoiser& denoiser, int commit_length) const {
    const std::span<const std::int32_t> canvas = denoiser.committed();
    block.canvas.assign(canvas.begin(), canvas.end());
    block.ids.assign(canvas.begin(), canvas.begin() + commit_length);

    std::vector<std::int32_t> ends = stop_ids_;
    ends.push_back(model_.config().pad_id);
    ends.push_back(model_.config().text.vocab_size - 1);
    std::optional<int> cut;
    if (options_.guards.confidence_trim) {
        cut = diffusion::confidence_trim(block.ids, denoiser.last_stats(), ends);
        if (cut) note(block.stats.guards, Guard::confidence_trim);
    }
    if (options_.guards.hard_trim) {
        const auto hard =
            diffusion::hard_trim(block.ids, denoiser.last_stats(), ends, options_.guards.hard_trim_floor);
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
    for (std::size_t i = 0; i < block.ids.size(); ++i) {
        if (std::find(stop_ids_.begin(), stop_ids_.end(), block.ids[i]) != stop_ids_.end()) {
            const bool content =
                options_.guards.tool_aware_stop && request_.inside_quote && request_.inside_quote(reply);
            if (!content) {
                block.stop = i;
                return;
            }
            note(block.stats.guards, Guard::tool_aware_stop);
        }
        reply.push_back(block.ids[i]);
    }
}

std::optional<Guard> Reply::wants_reroll(const Block& block, int number, int attempt, bool settled) const {
    if (number == 0 && block.stop && attempt < options_.guards.empty_reply_rerolls) {
        const std::span<const std::int32_t> reply(block.ids.data(), *block.stop);
        if (request_.shows_nothing ? request_.shows_nothing(reply) : reply.empty())
            return Guard::empty_reply_reroll;
    }
    if (options_.guards.nonconvergence_reroll && !settled && attempt == 0)
        return Guard::nonconvergence_reroll;
    return std::nullopt;
}

EndEvent Reply::end(FinishReason reason, std::optional<std::int32_t> stop_id) {
    stats_.output_tokens = static_cast<int>(delivered_.size());
    stats_.total_ms = milliseconds_since(start_);
    EndEvent event{.reason = reason, .stop_id = stop_id, .stats = std::move(stats_)};
    sink_.on_end(event);
    return event;
}

}  // namespace dgemma::engine
