// Rows that a test writes instead of a network.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/row_stats.h"
#include "diffusion/denoiser.h"
#include "diffusion/noise_counter.h"

namespace dgemma::diffusion {

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

// What the head would say of a row of zt.
inline RowStats stats_of(std::span<const float> zt) {
    RowStats stats;
    stats.argmax = static_cast<std::int32_t>(std::max_element(zt.begin(), zt.end()) - zt.begin());
    stats.max = zt[static_cast<std::size_t>(stats.argmax)];
    double sum = 0, weighted = 0;
    for (const float x : zt) {
        const double e = std::exp(static_cast<double>(x) - stats.max);
        sum += e;
        weighted += e * (static_cast<double>(x) - stats.max);
    }
    stats.log_sum_exp = static_cast<float>(stats.max + std::log(sum));
    stats.entropy = static_cast<float>(std::log(sum) - weighted / sum);
    return stats;
}

class ScriptedRows final : public LogitRows {
  public:
    // Argmax and entropy alone, for cases that never read a row.
    ScriptedRows(std::span<const std::int32_t> argmax, std::span<const float> entropies) {
        for (std::size_t i = 0; i < argmax.size(); ++i)
            stats_.push_back({.argmax = argmax[i], .max = 0, .log_sum_exp = 0, .entropy = entropies[i]});
    }
    ScriptedRows(const Ids& argmax, float entropy)
        : ScriptedRows(argmax, std::vector<float>(argmax.size(), entropy)) {}
    explicit ScriptedRows(std::vector<std::vector<float>> logits) : logits_(std::move(logits)) {
        for (const auto& row : logits_) stats_.push_back(stats_of(row));
    }

    [[nodiscard]] std::span<const RowStats> stats() const override { return stats_; }
    [[nodiscard]] std::span<const float> row(int position) override {
        read_.insert(position);
        return logits_.at(static_cast<std::size_t>(position));
    }

    std::vector<RowStats>& mutable_stats() { return stats_; }
    [[nodiscard]] const std::set<int>& read() const { return read_; }  // positions whose row was asked for

  private:
    std::vector<RowStats> stats_;
    std::vector<std::vector<float>> logits_;
    std::set<int> read_;
};

// Exact mode with the defaults of the reference.
inline Options exact_options() {
    Options options;
    options.guards = Guards::none();
    return options;
}

// A vocabulary and entropies for tests of the Denoiser: sure rows meet the default confidence threshold.
inline constexpr int kVocabulary = 64;
inline constexpr float kSure = 0.001f, kUnsure = 2.0f;

inline Canvas canvas_of(int length, std::vector<Pin> pins = {}) {
    return {
        .length = length, .vocabulary = kVocabulary, .pad_id = 0, .filler_id = 63, .pins = std::move(pins)};
}

inline Denoiser started(const Options& options, const Canvas& canvas, NoiseSource& noise, BlockKey key = {}) {
    auto denoiser = Denoiser::start(options, canvas, noise, key);
    EXPECT_TRUE(denoiser) << (denoiser ? "" : denoiser.error().message);
    return std::move(denoiser).value();
}

inline StepOutcome advanced(Denoiser& denoiser, const Ids& argmax, float entropy) {
    ScriptedRows rows(argmax, entropy);
    auto outcome = denoiser.advance(rows);
    EXPECT_TRUE(outcome) << (outcome ? "" : outcome.error().message);
    return outcome ? *outcome : StepOutcome{};
}

inline Ids to_ids(std::span<const std::int32_t> ids) { return {ids.begin(), ids.end()}; }

inline bool fired(const StepOutcome& outcome, Guard guard) {
    return std::find(outcome.guards.begin(), outcome.guards.end(), guard) != outcome.guards.end();
}

// Runs with the given argmax canvases (the last one repeats) and returns the 1-based step that ended the
// block.
inline int stop_step(const Options& options, const std::vector<Ids>& argmax, float entropy, StopRule& rule) {
    CounterNoise noise(1, kVocabulary);
    auto denoiser = started(options, canvas_of(static_cast<int>(argmax[0].size())), noise);
    for (int step = 0; step < options.max_steps; ++step) {
        const auto now = std::min(static_cast<std::size_t>(step), argmax.size() - 1);
        const auto outcome = advanced(denoiser, argmax[now], entropy);
        rule = outcome.stop_rule;
        if (outcome.done) return step + 1;
    }
    return -1;
}

}  // namespace dgemma::diffusion
