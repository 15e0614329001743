#include "diffusion/denoiser.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/noise_counter.h"
#include "diffusion/scripted_rows.h"
#include "diffusion/tape.h"

namespace dgemma::diffusion {
namespace {

// D22: a threshold of k wants k + 1 equal argmax canvases, so the first step can never end a block unless k
// is 0.
TEST(Denoiser, StabilityThresholdKNeedsKPlusOneEqualCanvases) {
    const std::vector<Ids> settled = {{5, 6, 7, 8}}, restless = {{5, 6, 7, 8}, {5, 6, 7, 9}, {5, 6, 7, 8}};
    auto options = exact_options();
    StopRule rule{};
    for (const int k : {0, 1, 2, 3, 7}) {
        options.stability_threshold = k;
        EXPECT_EQ(stop_step(options, settled, kSure, rule), k + 1);
        EXPECT_EQ(rule, StopRule::stable);
        EXPECT_EQ(stop_step(options, restless, kSure, rule), k == 0 ? 1 : k + 3) << k;
    }
}

TEST(Denoiser, ConfidenceIsStrictlyBelowItsThreshold) {
    auto options = exact_options();
    options.confidence_threshold = 0.25f;
    StopRule rule{};
    EXPECT_EQ(stop_step(options, {{5, 6}}, 0.25f, rule), 48);
    EXPECT_EQ(rule, StopRule::max_steps);
    EXPECT_EQ(stop_step(options, {{5, 6}}, std::nextafter(0.25f, 0.0f), rule), 2);
}

TEST(Denoiser, WithoutAdaptiveStopAllStepsRun) {
    auto options = exact_options();
    options.adaptive_stop = false;
    options.guards.entropy_stop = options.guards.plateau_stop = true;
    options.max_steps = 20;
    StopRule rule{};
    EXPECT_EQ(stop_step(options, {{5, 6}}, 0.0f, rule), 20);
    EXPECT_EQ(rule, StopRule::max_steps);
}

TEST(Denoiser, AThresholdAboveTheNumberOfStepsIsNeverReached) {
    auto options = exact_options();
    options.stability_threshold = std::numeric_limits<int>::max();
    options.max_steps = 3;
    StopRule rule{};
    EXPECT_EQ(stop_step(options, {{5, 6}}, kSure, rule), 3);
    EXPECT_EQ(rule, StopRule::max_steps);
}

TEST(Denoiser, SettlingInTheLastStepIsStable) {
    auto options = exact_options();
    options.max_steps = 2;
    StopRule rule{};
    EXPECT_EQ(stop_step(options, {{5, 6}}, kSure, rule), 2);
    EXPECT_EQ(rule, StopRule::stable);
}

// What is kept stays, the rest is noise, and what was kept before may be lost again.
TEST(Denoiser, TheNextCanvasIsKeptTokensAndNoise) {
    Tape tape({{1, 2, 3}, {11, 12, 13}, {21, 22, 23}});
    auto denoiser = started(exact_options(), canvas_of(3), tape);
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{1, 2, 3}));
    EXPECT_TRUE(denoiser.committed().empty());
    EXPECT_EQ(denoiser.temperature(), 0.8f);
    ScriptedRows one(Ids{31, 32, 33}, std::vector<float>{3, 0.01f, 0.02f});
    auto outcome = denoiser.advance(one);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{1, 1, 1}));  // the third position pushes the sum over, and is kept
    ScriptedRows two(Ids{34, 35, 36}, std::vector<float>{3, 5, 4});
    outcome = denoiser.advance(two);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{1, 0, 0}));
    EXPECT_EQ(outcome->accepted, 1);
    EXPECT_EQ(outcome->mean_entropy, 4);
    EXPECT_EQ(to_ids(denoiser.canvas()), (Ids{34, 22, 23}));
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{34, 35, 36}));
    EXPECT_EQ(denoiser.step(), 2);
    const auto means = denoiser.mean_entropies();
    ASSERT_EQ(means.size(), 2u);
    EXPECT_EQ(means[1], 4);
}

// D36: what a step leaves behind does not live in the caller's rows.
TEST(Denoiser, HistoryOutlivesTheRows) {
    CounterNoise noise(1, kVocabulary);
    auto denoiser = started(exact_options(), canvas_of(4), noise);
    auto rows = std::make_unique<ScriptedRows>(Ids{5, 6, 7, 8}, kSure);
    ASSERT_TRUE(denoiser.advance(*rows));
    for (auto& stats : rows->mutable_stats())
        stats = {.argmax = 40, .max = 9, .log_sum_exp = 9, .entropy = 9};
    EXPECT_FALSE(advanced(denoiser, Ids{40, 40, 40, 40}, kSure).stable);
    rows.reset();
    EXPECT_TRUE(advanced(denoiser, Ids{40, 40, 40, 40}, kSure).stable);
}

TEST(Denoiser, ARowThatIsNotFiniteEndsTheBlockWithItsPlace) {
    const auto spoil = [](float RowStats::*field, float value) {
        return [field, value](RowStats& stats) { stats.*field = value; };
    };
    const float nan = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();
    const std::vector<std::function<void(RowStats&)>> spoilers = {
        [](RowStats& stats) { stats.finite = false; }, spoil(&RowStats::entropy, nan),
        spoil(&RowStats::max, infinity), spoil(&RowStats::log_sum_exp, -infinity)};
    for (const auto& spoiler : spoilers) {
        Tape tape({{1, 2, 3}, {11, 12, 13}, {21, 22, 23}});
        auto denoiser = started(exact_options(), canvas_of(3), tape, {.block = 2});
        advanced(denoiser, {31, 32, 33}, kUnsure);
        const Ids canvas = to_ids(denoiser.canvas());
        ScriptedRows rows(Ids{41, 42, 43}, kSure);
        spoiler(rows.mutable_stats()[1]);
        const auto outcome = denoiser.advance(rows);
        ASSERT_FALSE(outcome);
        EXPECT_EQ(outcome.error().kind, ErrorKind::non_finite);
        EXPECT_NE(outcome.error().message.find("Block 3, step 2 of 48"), std::string::npos)
            << outcome.error().message;
        EXPECT_NE(outcome.error().message.find("canvas position 1 "), std::string::npos);
        EXPECT_EQ(to_ids(denoiser.committed()), (Ids{31, 32, 33}));
        EXPECT_EQ(to_ids(denoiser.canvas()), canvas);
        EXPECT_EQ(tape.canvases_left(), 1u);
    }
}

TEST(Denoiser, WrongRowsAndAFinishedBlockAreErrors) {
    CounterNoise noise(1, kVocabulary);
    auto options = exact_options();
    options.max_steps = 1;
    auto denoiser = started(options, canvas_of(3), noise);
    ScriptedRows two(Ids{1, 2}, kSure), three(Ids{1, 2, 3}, kSure);
    EXPECT_FALSE(denoiser.advance(two));
    ASSERT_TRUE(denoiser.advance(three));
    EXPECT_TRUE(denoiser.done());
    EXPECT_FALSE(denoiser.advance(three));
}

TEST(Denoiser, TheEndOfATapeIsAnError) {
    Tape empty({});
    EXPECT_FALSE(Denoiser::start(exact_options(), canvas_of(3), empty, {}));
    Tape tape({{1, 2, 3}});
    auto denoiser = started(exact_options(), canvas_of(3), tape);
    ScriptedRows rows(Ids{1, 2, 3}, kUnsure);
    const auto outcome = denoiser.advance(rows);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, ErrorKind::invalid);
}

TEST(Denoiser, NoiseOutsideTheVocabularyIsAnError) {
    Tape initial({{1, kVocabulary, 3}});
    EXPECT_FALSE(Denoiser::start(exact_options(), canvas_of(3), initial, {}));
    Tape later({{1, 2, 3}, {1, -1, 3}});
    auto denoiser = started(exact_options(), canvas_of(3), later);
    ScriptedRows rows(Ids{1, 2, 3}, kUnsure);
    EXPECT_FALSE(denoiser.advance(rows));
}

TEST(Denoiser, TheLastStepAcceptsNothingUnlessExact) {
    for (const bool exact : {false, true}) {
        Tape tape({{1, 2, 3}, {11, 12, 13}, {21, 22, 23}});
        auto options = exact_options();
        options.max_steps = 2;
        options.guards.last_step = !exact;
        auto denoiser = started(options, canvas_of(3), tape);
        EXPECT_FALSE(fired(advanced(denoiser, {31, 32, 33}, kUnsure), Guard::last_step));
        const auto outcome = advanced(denoiser, {34, 35, 36}, kUnsure);
        EXPECT_TRUE(outcome.done);
        EXPECT_EQ(outcome.accepted, exact ? 1 : 0);
        EXPECT_EQ(fired(outcome, Guard::last_step), !exact);
        EXPECT_EQ(tape.canvases_left(), exact ? 0u : 1u);  // the reference draws at the last step too
    }
}

// A source that draws nothing at the last step, and counts what it is asked for.
class CountingNoise final : public NoiseSource {
  public:
    Status initial_canvas(BlockKey, std::span<std::int32_t> ids) override { return fill(ids, 1); }
    Status draw(BlockKey, int, LogitRows&, float, std::span<const std::uint8_t>,
                std::span<std::int32_t> ids) override {
        order += 'd';
        return fill(ids, 2);
    }
    Status renoise(BlockKey, int, std::span<std::int32_t> ids) override {
        order += 'r';
        return fill(ids, 3);
    }
    [[nodiscard]] bool draws_at_last_step() const override { return at_last_step; }

    std::string order;
    bool at_last_step = true;

  private:
    static Status fill(std::span<std::int32_t> ids, std::int32_t id) {
        std::fill(ids.begin(), ids.end(), id);
        return {};
    }
};

TEST(Denoiser, AsksForNoiseInTheOrderOfTheReferences) {
    for (const bool greedy : {true, false}) {
        for (const bool at_last_step : {true, false}) {
            CountingNoise noise;
            noise.at_last_step = at_last_step;
            auto options = exact_options();
            options.max_steps = 2;
            options.temperature = greedy ? 0 : 1;
            auto denoiser = started(options, canvas_of(3), noise);
            advanced(denoiser, {31, 32, 33}, kUnsure);
            EXPECT_EQ(to_ids(denoiser.canvas()), (greedy ? Ids{31, 3, 3} : Ids{2, 3, 3}));
            EXPECT_EQ(advanced(denoiser, {34, 35, 36}, kUnsure).accepted, 1);
            const std::string step = greedy ? "r" : "dr";
            EXPECT_EQ(noise.order, at_last_step ? step + step : step);
        }
    }
}

TEST(Denoiser, SameSeedSameBlockAnotherSeedAnother) {
    const auto run = [](std::uint64_t seed, BlockKey key) {
        CounterNoise noise(seed, kVocabulary);
        auto options = exact_options();
        options.temperature = 1;
        auto denoiser = started(options, canvas_of(16), noise, key);
        Ids all = to_ids(denoiser.canvas());
        for (int step = 0; step < 6; ++step) {
            std::vector<std::vector<float>> logits(16, std::vector<float>(kVocabulary));
            for (std::size_t i = 0; i < logits.size(); ++i)
                for (std::size_t id = 0; id < logits[i].size(); ++id)
                    logits[i][id] =
                        static_cast<float>((id * 7 + i * 3 + static_cast<std::size_t>(step)) % 23) * 0.5f;
            ScriptedRows rows(std::move(logits));
            EXPECT_TRUE(denoiser.advance(rows));
            const Ids canvas = to_ids(denoiser.canvas());
            all.insert(all.end(), canvas.begin(), canvas.end());
        }
        return all;
    };
    EXPECT_EQ(run(1, {}), run(1, {}));
    EXPECT_NE(run(1, {}), run(2, {}));
    EXPECT_NE(run(1, {}), run(1, {.block = 1}));
    EXPECT_NE(run(1, {}), run(1, {.attempt = 1}));
}

}  // namespace
}  // namespace dgemma::diffusion
