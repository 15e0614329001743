#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/denoiser.h"
#include "diffusion/noise_counter.h"
#include "diffusion/scripted_rows.h"

namespace dgemma::diffusion {
namespace {

TEST(DenoiserGuards, ADegenerateCanvasNeverStops) {
    for (const bool gate : {true, false}) {
        CounterNoise noise(1, kVocabulary);
        auto options = exact_options();
        options.guards.degenerate_gate = gate;
        options.max_steps = 4;
        auto denoiser = started(options, canvas_of(3), noise);
        advanced(denoiser, {0, 63, 0}, kSure);
        const auto second = advanced(denoiser, {0, 63, 0}, kSure);
        EXPECT_EQ(second.done, !gate);
        EXPECT_EQ(fired(second, Guard::degenerate_gate), gate);
        if (!gate) continue;
        advanced(denoiser, {0, 63, 0}, kSure);
        const auto last = advanced(denoiser, {0, 63, 0}, kSure);
        EXPECT_EQ(last.stop_rule, StopRule::max_steps);
    }
}

TEST(DenoiserGuards, EntropyStopNeedsNoStability) {
    auto options = exact_options();
    options.guards.entropy_stop = true;
    std::vector<Ids> restless;
    for (std::int32_t step = 0; step < 48; ++step) restless.push_back({step, 5});
    StopRule rule{};
    EXPECT_EQ(stop_step(options, restless, 0.049f, rule), 12);
    EXPECT_EQ(rule, StopRule::entropy_stop);
    EXPECT_EQ(stop_step(options, restless, 0.05f, rule), 48);
}

TEST(DenoiserGuards, PlateauStopCountsEqualMasks) {
    auto options = exact_options();
    options.guards.plateau_stop = true;
    std::vector<Ids> restless;
    for (std::int32_t step = 0; step < 48; ++step) restless.push_back({step, 5});
    StopRule rule{};
    EXPECT_EQ(stop_step(options, restless, 0.049f, rule), 8);
    EXPECT_EQ(rule, StopRule::plateau_stop);
    // Another mask in between starts the count anew.
    CounterNoise noise(1, kVocabulary);
    auto denoiser = started(options, canvas_of(40), noise);
    for (int step = 0; step < 13; ++step) {
        std::vector<float> entropies(40, 0.02f);  // six of them fit into the bound
        if (step == 4) entropies[20] = 0.01f;
        Ids argmax(40, 5);
        argmax[0] = step;
        ScriptedRows rows(argmax, entropies);
        const auto outcome = denoiser.advance(rows);
        ASSERT_TRUE(outcome);
        ASSERT_EQ(outcome->done, step == 12) << step;
    }
}

TEST(DenoiserGuards, PrefixExitCommitsTheFirstHalf) {
    CounterNoise noise(1, kVocabulary);
    auto options = exact_options();
    options.guards.prefix_exit = true;
    auto denoiser = started(options, canvas_of(32), noise);
    for (int step = 0; step < 5; ++step) {
        std::vector<float> entropies(32, 0.01f);
        std::fill(entropies.begin() + 16, entropies.end(), 1.0f);
        Ids argmax(32, 5);
        argmax[20] = step;  // the tail never settles
        ScriptedRows rows(argmax, entropies);
        const auto outcome = denoiser.advance(rows);
        ASSERT_TRUE(outcome);
        ASSERT_EQ(outcome->done, step == 4) << step;
        EXPECT_EQ(outcome->commit_length, step == 4 ? 16 : 32);
        EXPECT_EQ(fired(*outcome, Guard::prefix_exit), step == 4);
    }
}

TEST(DenoiserGuards, PrefixExitWaitsForAHeadThatStays) {
    CounterNoise noise(1, kVocabulary);
    auto options = exact_options();
    options.guards.prefix_exit = true;
    auto denoiser = started(options, canvas_of(32), noise);
    for (int step = 0; step < 9; ++step) {
        std::vector<float> entropies(32, 0.01f);
        std::fill(entropies.begin() + 16, entropies.end(), 1.0f);
        Ids argmax(32, 5);
        argmax[3] = step < 7 ? step : 7;  // steps 7 and 8 (from 0) are the first two alike
        ScriptedRows rows(argmax, entropies);
        const auto outcome = denoiser.advance(rows);
        ASSERT_TRUE(outcome);
        ASSERT_EQ(outcome->done, step == 8) << step;
    }
}

TEST(DenoiserGuards, NoneFiresInExactMode) {
    CounterNoise noise(1, kVocabulary);
    auto options = exact_options();
    auto denoiser = started(options, canvas_of(32), noise);
    while (!denoiser.done()) {
        std::vector<float> entropies(32, 0.01f);
        std::fill(entropies.begin() + 16, entropies.end(), 1.0f);
        ScriptedRows rows(Ids(32, 0), entropies);
        const auto outcome = denoiser.advance(rows);
        ASSERT_TRUE(outcome);
        EXPECT_TRUE(outcome->guards.empty());
    }
    EXPECT_EQ(denoiser.step(), 48);
}

}  // namespace
}  // namespace dgemma::diffusion
