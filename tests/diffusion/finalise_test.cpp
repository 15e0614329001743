#include "diffusion/finalise.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace dgemma::diffusion {
namespace {

using Ids = std::vector<std::int32_t>;
const Ids kStops = {1, 106, 50};

// D27: each stop id, at each position.
TEST(Finalise, EveryStopIdCutsAtEveryPosition) {
    for (const std::int32_t stop : kStops) {
        for (int position = 0; position < 32; ++position) {
            Ids block(32, 7);
            block[static_cast<std::size_t>(position)] = stop;
            ASSERT_EQ(first_stop(block, kStops), position) << "id " << stop;
            ASSERT_TRUE(finalise(block, false, kStops, 0));
            for (int i = 0; i < 32; ++i)
                ASSERT_EQ(block[static_cast<std::size_t>(i)], i < position    ? 7
                                                              : i == position ? stop
                                                                              : 0)
                    << "id " << stop << " at " << position << ", position " << i;
        }
    }
}

TEST(Finalise, TheFirstOfSeveralStopIdsCounts) {
    Ids block = {7, 50, 1, 106, 7};
    EXPECT_EQ(first_stop(block, kStops), 1);
    EXPECT_TRUE(finalise(block, false, kStops, 9));
    EXPECT_EQ(block, (Ids{7, 50, 9, 9, 9}));
}

TEST(Finalise, WithoutAStopIdTheBlockStays) {
    Ids block = {7, 8, 9};
    EXPECT_FALSE(finalise(block, false, kStops, 0));
    EXPECT_EQ(block, (Ids{7, 8, 9}));
    EXPECT_EQ(first_stop(block, {}), std::nullopt);
}

TEST(Finalise, ARowThatFinishedEarlierBecomesPads) {
    Ids block = {7, 1, 9};
    EXPECT_TRUE(finalise(block, true, kStops, 0));
    EXPECT_EQ(block, (Ids{0, 0, 0}));
}

TEST(Finalise, WithoutAPadIdNothingIsOverwritten) {
    Ids block = {7, 1, 9};
    EXPECT_TRUE(finalise(block, false, kStops, std::nullopt));
    EXPECT_EQ(block, (Ids{7, 1, 9}));
    EXPECT_TRUE(finalise(block, true, kStops, std::nullopt));
    EXPECT_EQ(block, (Ids{7, 1, 9}));
}

TEST(CanvasLength, ShrinksToWhatRemainsButNotBelow64) {
    EXPECT_EQ(canvas_length(256, 10, false), 256);
    EXPECT_EQ(canvas_length(256, 10, true), 64);
    EXPECT_EQ(canvas_length(256, 64, true), 64);
    EXPECT_EQ(canvas_length(256, 65, true), 65);
    EXPECT_EQ(canvas_length(256, 255, true), 255);
    EXPECT_EQ(canvas_length(256, 1000, true), 256);
    EXPECT_EQ(canvas_length(32, 1, true), 32);
}

TEST(BlockCount, RoundsUpToWholeCanvases) {
    EXPECT_EQ(block_count(1, 256), 1);
    EXPECT_EQ(block_count(256, 256), 1);
    EXPECT_EQ(block_count(257, 256), 2);
    EXPECT_EQ(block_count(0, 256), 0);
    EXPECT_EQ(block_count(std::numeric_limits<int>::max(), 1), std::numeric_limits<int>::max());
}

}  // namespace
}  // namespace dgemma::diffusion
