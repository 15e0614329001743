#include <vector>

#include <gtest/gtest.h>

#include "diffusion/denoiser.h"
#include "diffusion/noise_counter.h"
#include "diffusion/scripted_rows.h"
#include "diffusion/tape.h"

namespace dgemma::diffusion {
namespace {

TEST(Pins, HoldTheirIdInEveryCanvasAndInTheBlock) {
    CounterNoise noise(1, kVocabulary);
    auto options = exact_options();
    options.max_steps = 5;
    auto denoiser = started(options, canvas_of(4, {{1, 50}, {3, 51}}), noise);
    for (int step = 0; step < 5; ++step) {
        EXPECT_EQ(denoiser.canvas()[1], 50);
        EXPECT_EQ(denoiser.canvas()[3], 51);
        const auto outcome = advanced(denoiser, {5, 6, 7, 8}, kUnsure);
        EXPECT_EQ(outcome.accept, (Mask{1, 1, 0, 1}));  // the lowest free one, and the pinned
        EXPECT_EQ(to_ids(denoiser.committed()), (Ids{5, 50, 7, 51}));
    }
    EXPECT_TRUE(denoiser.done());
}

TEST(Pins, TakeNoPartInEntropyAcceptanceOrStability) {
    Tape tape({{1, 2, 3, 4}, {11, 12, 13, 14}, {21, 22, 23, 24}});
    auto denoiser = started(exact_options(), canvas_of(4, {{0, 50}, {2, 51}}), tape);
    // The pinned rows would take the whole bound and move their argmax.
    ScriptedRows one(Ids{5, 6, 7, 8}, std::vector<float>{0.09f, 0.003f, 9, 0.004f});
    auto outcome = denoiser.advance(one);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->accept, (Mask{1, 1, 1, 1}));
    EXPECT_NEAR(outcome->mean_entropy, 0.0035f, 1e-7);
    ScriptedRows two(Ids{40, 6, 41, 8}, std::vector<float>{0.09f, 0.003f, 9, 0.004f});
    outcome = denoiser.advance(two);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->stop_rule, StopRule::stable);
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{50, 6, 51, 8}));
}

TEST(Pins, ACanvasThatIsAllPinnedEndsAtOnce) {
    CounterNoise noise(1, kVocabulary);
    auto denoiser = started(exact_options(), canvas_of(2, {{0, 50}, {1, 51}}), noise);
    EXPECT_EQ(advanced(denoiser, {5, 6}, kUnsure).stop_rule, StopRule::stable);
    EXPECT_EQ(to_ids(denoiser.committed()), (Ids{50, 51}));
}

TEST(Pins, NonsenseIsRefused) {
    CounterNoise noise(1, kVocabulary);
    for (const auto& pins : std::vector<std::vector<Pin>>{
             {{-1, 5}}, {{4, 5}}, {{0, -1}}, {{0, kVocabulary}}, {{2, 5}, {2, 6}}}) {
        const auto denoiser = Denoiser::start(exact_options(), canvas_of(4, pins), noise, {});
        ASSERT_FALSE(denoiser);
        EXPECT_EQ(denoiser.error().kind, ErrorKind::usage);
    }
}

}  // namespace
}  // namespace dgemma::diffusion
