#include "diffusion/denoiser.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/core.h>

#include "diffusion/sampler.h"
#include "diffusion/schedule.h"

namespace dgemma::diffusion {
namespace {

Status check(const Canvas& canvas) {
    if (canvas.length < 1)
        return Error{ErrorKind::usage,
                     fmt::format("The canvas has {} positions; it needs at least 1", canvas.length)};
    if (canvas.vocabulary < 1)
        return Error{ErrorKind::usage,
                     fmt::format("The vocabulary has {} ids; it needs at least 1", canvas.vocabulary)};
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(canvas.length), 0);
    for (const Pin& pin : canvas.pins) {
        if (pin.position < 0 || pin.position >= canvas.length)
            return Error{ErrorKind::usage,
                         fmt::format("Position {} is pinned, but the canvas has positions 0 to {}",
                                     pin.position, canvas.length - 1)};
        if (pin.id < 0 || pin.id >= canvas.vocabulary)
            return Error{ErrorKind::usage, fmt::format("Position {} is pinned to id {}; ids run from 0 to {}",
                                                       pin.position, pin.id, canvas.vocabulary - 1)};
        if (std::exchange(seen[static_cast<std::size_t>(pin.position)], std::uint8_t{1}))
            return Error{ErrorKind::usage,
                         fmt::format("Position {} is pinned twice; pin it once", pin.position)};
    }
    return {};
}

bool is_finite(const RowStats& row) {
    return row.finite && std::isfinite(row.max) && std::isfinite(row.log_sum_exp) &&
           std::isfinite(row.entropy);
}

}  // namespace

std::string_view name_of(StopRule rule) {
    switch (rule) {
        case StopRule::none:
            return "";
        case StopRule::stable:
            return "stable";
        case StopRule::all_revealed:
            return "all_revealed";
        case StopRule::max_steps:
            return "max_steps";
        case StopRule::entropy_stop:
            return name_of(Guard::entropy_stop);
        case StopRule::plateau_stop:
            return name_of(Guard::plateau_stop);
        case StopRule::prefix_exit:
            return name_of(Guard::prefix_exit);
    }
    return "";
}

Denoiser::Denoiser(const Options& options, const Canvas& canvas, NoiseSource& noise, BlockKey key)
    : options_(options), shape_(canvas), noise_(&noise), key_(key) {
    const auto length = static_cast<std::size_t>(canvas.length);
    pinned_.assign(length, 0);
    canvas_.assign(length, 0);
    drawn_.assign(length, 0);
    fresh_.assign(length, 0);
    for (const Pin& pin : canvas.pins) pinned_[static_cast<std::size_t>(pin.position)] = 1;
}

Result<Denoiser> Denoiser::start(const Options& options, const Canvas& canvas, NoiseSource& noise,
                                 BlockKey key) {
    DGEMMA_CHECK(diffusion::check(options));
    DGEMMA_CHECK(check(canvas));
    Denoiser denoiser(options, canvas, noise, key);
    DGEMMA_CHECK(noise.initial_canvas(key, denoiser.canvas_));
    DGEMMA_CHECK(denoiser.check_ids(denoiser.canvas_));
    for (const Pin& pin : canvas.pins) denoiser.canvas_[static_cast<std::size_t>(pin.position)] = pin.id;
    denoiser.revealed_ = denoiser.pinned_;
    denoiser.draft_ = denoiser.canvas_;
    return denoiser;
}

float Denoiser::temperature() const {
    const int n = std::max(options_.max_steps - step_, 1);
    return diffusion::temperature(n, options_.max_steps, options_.t_min, options_.t_max);
}

Result<StepOutcome> Denoiser::advance(LogitRows& rows) {
    if (done_)
        return Error{ErrorKind::usage,
                     fmt::format("Block {} has been denoised; start the next one", key_.block + 1)};
    DGEMMA_CHECK(check_rows(rows.stats()));
    take_in(rows.stats());

    StepOutcome outcome;
    outcome.mean_entropy = mean_entropies_.back();
    const bool nothing_free =
        std::all_of(pinned_.begin(), pinned_.end(), [](std::uint8_t p) { return p != 0; });
    outcome.stable = nothing_free || equal_passes_ >= options_.stability_threshold;
    outcome.confident = outcome.mean_entropy < options_.confidence_threshold;
    DGEMMA_CHECK(options_.sampler == Sampler::entropy_bound ? sample_entropy_bound(rows, outcome)
                                                            : sample_confidence(rows, outcome));
    outcome.accepted = static_cast<int>(std::count(outcome.accept.begin(), outcome.accept.end(), 1));
    equal_masks_ = outcome.accept == accept_ ? equal_masks_ + 1 : 1;
    accept_ = outcome.accept;
    decide(outcome);
    ++step_;
    done_ = outcome.done;
    return outcome;
}

Status Denoiser::check_rows(std::span<const RowStats> stats) const {
    if (stats.size() != canvas_.size())
        return Error{ErrorKind::invalid,
                     fmt::format("The network answered with {} rows for a canvas of {} positions",
                                 stats.size(), canvas_.size())};
    const auto bad = std::find_if_not(stats.begin(), stats.end(), is_finite);
    if (bad == stats.end()) return {};
    return Error{
        ErrorKind::non_finite,
        fmt::format("Block {}, step {} of {}: the logits of canvas position {} hold a NaN or an infinity; "
                    "check the checkpoint's files, or compute in f32",
                    key_.block + 1, step_ + 1, options_.max_steps, bad - stats.begin())};
}

// Keeps the argmax, with the pinned ids in their places, and counts how long it has been the same.
void Denoiser::take_in(std::span<const RowStats> stats) {
    stats_.assign(stats.begin(), stats.end());
    std::vector<std::int32_t> argmax(stats.size());
    std::transform(stats.begin(), stats.end(), argmax.begin(),
                   [](const RowStats& row) { return row.argmax; });
    for (const Pin& pin : shape_.pins) argmax[static_cast<std::size_t>(pin.position)] = pin.id;
    const auto half = static_cast<std::ptrdiff_t>(argmax.size() / 2);
    const bool first = argmax_.empty();
    equal_passes_ = !first && argmax == argmax_ ? equal_passes_ + 1 : 0;
    equal_head_passes_ = !first && std::equal(argmax.begin(), argmax.begin() + half, argmax_.begin())
                             ? equal_head_passes_ + 1
                             : 0;
    argmax_ = std::move(argmax);
    mean_entropies_.push_back(mean_over(0, stats_.size()));
}

float Denoiser::mean_over(std::size_t begin, std::size_t end) const {
    std::vector<float> entropies;
    entropies.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i)
        if (!pinned_[i]) entropies.push_back(stats_[i].entropy);
    return mean_entropy(entropies);
}

Status Denoiser::sample_entropy_bound(LogitRows& rows, StepOutcome& outcome) {
    outcome.accept = pinned_;
    if (is_last_step() && options_.guards.last_step) {
        outcome.guards.push_back(Guard::last_step);
        return {};
    }
    std::vector<std::size_t> positions;
    std::vector<float> entropies;
    for (std::size_t i = 0; i < stats_.size(); ++i) {
        if (pinned_[i]) continue;
        positions.push_back(i);
        entropies.push_back(stats_[i].entropy);
    }
    const auto mask = entropy_bound_mask(entropies, options_.entropy_bound);
    std::vector<std::uint8_t> wanted(stats_.size(), 0);
    for (std::size_t k = 0; k < mask.size(); ++k)
        outcome.accept[positions[k]] = wanted[positions[k]] = mask[k];
    if (is_last_step() && !noise_->draws_at_last_step()) return {};
    DGEMMA_CHECK(draw(rows, wanted));
    canvas_ = drawn_;
    return renoise(outcome.accept);
}

Status Denoiser::sample_confidence(LogitRows& rows, StepOutcome& outcome) {
    outcome.accept = revealed_;
    if (is_last_step()) return {};  // no sampling: the argmax is committed
    std::vector<std::uint8_t> wanted(revealed_.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = !revealed_[i];
    DGEMMA_CHECK(draw(rows, wanted));
    std::vector<float> confidences(stats_.size(), 0);
    for (std::size_t i = 0; i < stats_.size(); ++i) {
        if (revealed_[i]) continue;
        const bool is_argmax = drawn_[i] == stats_[i].argmax;
        const float logit =
            is_argmax ? stats_[i].max : rows.row(static_cast<int>(i))[static_cast<std::size_t>(drawn_[i])];
        confidences[i] = std::exp(logit - stats_[i].log_sum_exp);
    }
    const auto accept = confidence_threshold_mask(confidences, revealed_, options_.threshold);
    for (std::size_t i = 0; i < accept.size(); ++i) {
        if (!accept[i]) continue;
        revealed_[i] = 1;
        draft_[i] = drawn_[i];
    }
    outcome.accept = revealed_;
    canvas_ = draft_;
    return renoise(revealed_);
}

// Fills drawn_: a token where wanted, the argmax (or the pinned id) elsewhere.
Status Denoiser::draw(LogitRows& rows, std::span<const std::uint8_t> wanted) {
    if (options_.temperature <= 0) {
        std::copy(argmax_.begin(), argmax_.end(), drawn_.begin());
        return {};
    }
    DGEMMA_CHECK(noise_->draw(key_, step_, rows, options_.temperature, wanted, drawn_));
    for (std::size_t i = 0; i < drawn_.size(); ++i)
        if (!wanted[i]) drawn_[i] = argmax_[i];
    return check_ids(drawn_);
}

// Puts fresh random ids on the canvas wherever `keep` is 0. They are drawn for all positions, kept or not.
Status Denoiser::renoise(std::span<const std::uint8_t> keep) {
    DGEMMA_CHECK(noise_->renoise(key_, step_, fresh_));
    DGEMMA_CHECK(check_ids(fresh_));
    for (std::size_t i = 0; i < canvas_.size(); ++i)
        if (!keep[i]) canvas_[i] = fresh_[i];
    return {};
}

Status Denoiser::check_ids(std::span<const std::int32_t> ids) const {
    const auto outside = [&](std::int32_t id) { return id < 0 || id >= shape_.vocabulary; };
    const auto bad = std::find_if(ids.begin(), ids.end(), outside);
    if (bad == ids.end()) return {};
    return Error{ErrorKind::invalid,
                 fmt::format("The noise of block {} holds id {}, but the vocabulary has {} ids; use "
                             "a noise tape of this model",
                             key_.block + 1, *bad, shape_.vocabulary)};
}

void Denoiser::decide(StepOutcome& outcome) {
    outcome.commit_length = shape_.length;
    const bool revealed =
        options_.sampler == Sampler::confidence_threshold &&
        std::all_of(revealed_.begin(), revealed_.end(), [](std::uint8_t r) { return r != 0; });
    outcome.stop_rule = revealed ? StopRule::all_revealed : stop_rule(outcome);
    // A revealed canvas is frozen, so holding it open would change nothing.
    if (!revealed && outcome.stop_rule != StopRule::none && options_.guards.degenerate_gate &&
        is_degenerate(argmax_, pinned_, shape_.pad_id, shape_.filler_id)) {
        outcome.guards.push_back(Guard::degenerate_gate);
        outcome.stop_rule = StopRule::none;
    }
    switch (outcome.stop_rule) {
        case StopRule::entropy_stop:
            outcome.guards.push_back(Guard::entropy_stop);
            break;
        case StopRule::plateau_stop:
            outcome.guards.push_back(Guard::plateau_stop);
            break;
        case StopRule::prefix_exit:
            outcome.guards.push_back(Guard::prefix_exit);
            outcome.commit_length = shape_.length / 2;
            break;
        default:
            break;
    }
    if (outcome.stop_rule == StopRule::none && is_last_step()) outcome.stop_rule = StopRule::max_steps;
    outcome.done = outcome.stop_rule != StopRule::none;
}

// The rule that would end the block before its last step.
StopRule Denoiser::stop_rule(const StepOutcome& outcome) const {
    if (!options_.adaptive_stop) return StopRule::none;
    if (outcome.stable && outcome.confident) return StopRule::stable;
    const int steps = step_ + 1;
    if (options_.guards.entropy_stop && entropy_stop(steps, outcome.mean_entropy))
        return StopRule::entropy_stop;
    if (options_.guards.plateau_stop && plateau_stop(equal_masks_, outcome.mean_entropy))
        return StopRule::plateau_stop;
    // A head shorter than the first position that may be trimmed is not worth a block.
    const std::size_t half = stats_.size() / 2;
    if (options_.guards.prefix_exit && half >= static_cast<std::size_t>(kFirstTrimmedPosition) &&
        prefix_exit(steps, mean_over(0, half), equal_head_passes_ > 0, mean_over(half, stats_.size())))
        return StopRule::prefix_exit;
    return StopRule::none;
}

}  // namespace dgemma::diffusion
