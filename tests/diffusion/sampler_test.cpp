#include "diffusion/sampler.h"

#include <vector>

#include <gtest/gtest.h>

namespace dgemma::diffusion {
namespace {

using Mask = std::vector<std::uint8_t>;
using Values = std::vector<float>;

TEST(EntropyBound, KeepsTheLowestAlwaysAndTheFirstThatPushesTheSumOver) {
    EXPECT_EQ(entropy_bound_mask(Values{5, 7, 6}, 0.1f), (Mask{1, 0, 0}));
    // Sums before each, ascending: 0, 0.04, 0.10, 0.18.
    EXPECT_EQ(entropy_bound_mask(Values{0.08f, 0.04f, 0.06f, 0.5f}, 0.11f), (Mask{1, 1, 1, 0}));
    EXPECT_EQ(entropy_bound_mask(Values{}, 0.1f), Mask{});
}

TEST(EntropyBound, TheBoundItselfIsKept) {
    EXPECT_EQ(entropy_bound_mask(Values{0.25f, 0.5f, 2}, 0.75f), (Mask{1, 1, 1}));
    EXPECT_EQ(entropy_bound_mask(Values{0.25f, 0.5f, 2}, 0.7499999f), (Mask{1, 1, 0}));
}

TEST(EntropyBound, EqualEntropiesGoByPosition) {
    EXPECT_EQ(entropy_bound_mask(Values(5, 0.5f), 1.0f), (Mask{1, 1, 1, 0, 0}));
    EXPECT_EQ(entropy_bound_mask(Values{1, 0.5f, 0.5f, 0.5f}, 0.5f), (Mask{0, 1, 1, 0}));
}

TEST(EntropyBound, TheSumIncludesThePositionBeforeItIsTakenOffInF32) {
    // 2^24 + 1 rounds to 2^24 in f32, so the sum before the second position comes out as 0 instead of 1.
    const float big = 16777216;
    EXPECT_EQ(entropy_bound_mask(Values{1, big}, 0.5f), (Mask{1, 1}));
    EXPECT_EQ(entropy_bound_mask(Values{2, big}, 0.5f), (Mask{1, 0}));
}

TEST(ConfidenceThreshold, KeepsAllThatReachTheThreshold) {
    EXPECT_EQ(confidence_threshold_mask(Values{0.9f, 0.89f, 0.95f}, Mask{0, 0, 0}, 0.9f), (Mask{1, 0, 1}));
}

TEST(ConfidenceThreshold, KeepsTheBestOneWhereNoneDoes) {
    EXPECT_EQ(confidence_threshold_mask(Values{0.3f, 0.8f, 0.8f}, Mask{0, 0, 0}, 0.9f), (Mask{0, 1, 0}));
}

TEST(ConfidenceThreshold, RevealedPositionsTakeNoPart) {
    EXPECT_EQ(confidence_threshold_mask(Values{0.99f, 0.2f, 0.1f}, Mask{1, 0, 0}, 0.9f), (Mask{0, 1, 0}));
    EXPECT_EQ(confidence_threshold_mask(Values{0.99f, 0.2f}, Mask{1, 1}, 0.9f), (Mask{0, 0}));
}

TEST(MeanEntropy, AddsInTheOrderOfTheReference) {
    EXPECT_EQ(mean_entropy(Values{}), 0);
    EXPECT_EQ(mean_entropy(Values{1, 2, 6}), 3);
    EXPECT_EQ(mean_entropy(Values(256, 0.25f)), 0.25f);
    // Positions 32 and 64 share a lane with position 0: each one is added to 2^24 by itself, and lost.
    Values values(96, 0);
    values[0] = 16777216;
    values[32] = values[64] = 1;
    EXPECT_EQ(mean_entropy(values), 16777216.0f / 96);
    // Positions 1 and 33 share another: they meet first, and their 2 survives.
    Values kept(96, 0);
    kept[0] = 16777216;
    kept[1] = kept[33] = 1;
    EXPECT_EQ(mean_entropy(kept), 16777218.0f / 96);
}

}  // namespace
}  // namespace dgemma::diffusion
