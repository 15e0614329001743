#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/denoiser.h"
#include "diffusion/noise_counter.h"
#include "diffusion/scripted_rows.h"
#include "diffusion/tape.h"

namespace dgemma::diffusion {
namespace {

// Rows of three ids where the argmax has about probability p.
ScriptedRows rows_with(const std::vector<std::pair<int, float>>& argmax_and_p) {
    std::vector<std::vector<float>> logits;
    for (const auto& [argmax, p] : argmax_and_p) {
        logits.emplace_back(3, std::log((1 - p) / 2));
        logits.back()[static_cast<std::size_t>(argmax)] = std::log(p);
    }
    return ScriptedRows(std::move(logits));
}

Options confidence_options() {
    auto options = exact_options();
    options.sampler = Sampler::confidence_threshold;
    return options;
}

TEST(ConfidenceSampler, RevealsKeepsAndEndsWhenAllIsRevealed) {
    Tape tape({{40, 41, 42}, {11, 12, 13}, {21, 22, 23}, {31, 32, 33}});
    auto denoiser = started(confidence_options(), canvas_of(3), tape);
    auto one = rows_with({{1, 0.95f}, {1, 0.5f}, {1, 0.4f}});
    auto outcome = denoiser.advance(one);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{1, 0, 0}));
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{1, 12, 13}));
    // None reaches the threshold: the best of the unrevealed. The revealed token stays though the argmax
    // moves on.
    auto two = rows_with({{2, 0.99f}, {0, 0.6f}, {0, 0.7f}});
    outcome = denoiser.advance(two);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{1, 0, 1}));
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{1, 22, 0}));
    auto three = rows_with({{2, 0.99f}, {2, 0.6f}, {1, 0.7f}});
    outcome = denoiser.advance(three);
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->done);
    EXPECT_EQ(outcome->stop_rule, StopRule::all_revealed);
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{1, 2, 0}));
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{2, 2, 1}));  // the argmax of the last step, not the canvas
}

TEST(ConfidenceSampler, TheLastStepSamplesNothing) {
    Tape tape({{40, 41}, {11, 12}});
    auto options = confidence_options();
    options.max_steps = 2;
    auto denoiser = started(options, canvas_of(2), tape);
    auto one = rows_with({{1, 0.5f}, {1, 0.4f}}), two = rows_with({{2, 0.99f}, {2, 0.99f}});
    ASSERT_TRUE(denoiser.advance(one));
    const auto outcome = denoiser.advance(two);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->stop_rule, StopRule::max_steps);
    EXPECT_EQ(outcome->accept, (Mask{1, 0}));
    EXPECT_EQ(tape.canvases_left(), 0u);
}

TEST(ConfidenceSampler, StabilityEndsItUnlessSwitchedOff) {
    for (const bool adaptive : {true, false}) {
        CounterNoise noise(1, kVocabulary);
        auto options = confidence_options();
        options.adaptive_stop = adaptive;
        options.confidence_threshold = 2;
        auto denoiser = started(options, canvas_of(4), noise);
        StopRule rule{};
        int steps = 0;
        while (!denoiser.done()) {
            auto rows = rows_with({{1, 0.5f}, {1, 0.5f}, {1, 0.5f}, {1, 0.5f}});
            const auto outcome = denoiser.advance(rows);
            ASSERT_TRUE(outcome);
            rule = outcome->stop_rule;
            ++steps;
        }
        EXPECT_EQ(steps, adaptive ? 2 : 4);
        EXPECT_EQ(rule, adaptive ? StopRule::stable : StopRule::all_revealed);
    }
}

TEST(ConfidenceSampler, ADrawnTokenHasItsOwnConfidence) {
    // Token 2 is drawn at both positions; it is likely only at the second.
    class Twos final : public NoiseSource {
      public:
        Status initial_canvas(BlockKey, std::span<std::int32_t>) override { return {}; }
        Status renoise(BlockKey, int, std::span<std::int32_t>) override { return {}; }
        Status draw(BlockKey, int, LogitRows&, float temperature, std::span<const std::uint8_t>,
                    std::span<std::int32_t> ids) override {
            EXPECT_EQ(temperature, 0.7f);
            std::fill(ids.begin(), ids.end(), 2);
            return {};
        }
    } noise;
    auto options = confidence_options();
    options.temperature = 0.7f;
    auto denoiser = started(options, canvas_of(2), noise);
    auto rows = rows_with({{1, 0.98f}, {2, 0.95f}});
    const auto outcome = denoiser.advance(rows);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{0, 1}));
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{1, 2}));
}

TEST(ConfidenceSampler, PinsCountAsRevealed) {
    Tape tape({{40, 41}, {11, 12}, {21, 22}});
    auto denoiser = started(confidence_options(), canvas_of(2, {{0, 50}}), tape);
    auto rows = rows_with({{1, 0.99f}, {1, 0.4f}});
    const auto outcome = denoiser.advance(rows);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->stop_rule, StopRule::all_revealed);
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{50, 1}));
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{50, 1}));
}

}  // namespace
}  // namespace dgemma::diffusion
