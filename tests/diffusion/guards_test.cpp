#include "diffusion/guards.h"

#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/options.h"

namespace dgemma::diffusion {
namespace {

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

// A canvas of 32 rows, each with the given probability of its argmax.
std::vector<RowStats> rows_with(float p) {
    return std::vector<RowStats>(
        32, RowStats{.argmax = 0, .max = 2, .log_sum_exp = 2 - std::log(p), .entropy = 0});
}

Ids distinct() {
    Ids ids(32);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(100 + i);
    return ids;
}

TEST(Guards, NamesAreUniqueAndInTheOrderOfTheEnumeration) {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < kGuards.size(); ++i) {
        EXPECT_EQ(static_cast<std::size_t>(kGuards[i].guard), i);
        EXPECT_EQ(name_of(kGuards[i].guard), kGuards[i].name);
        names.insert(kGuards[i].name);
    }
    EXPECT_EQ(names.size(), kGuards.size());
}

TEST(Guards, NoneTurnsEveryGuardOff) {
    const Guards none = Guards::none();
    EXPECT_FALSE(none.degenerate_gate || none.last_step || none.tool_aware_stop || none.empty_reply_rerolls ||
                 none.entropy_stop || none.plateau_stop || none.confidence_trim || none.hard_trim ||
                 none.prefix_exit || none.nonconvergence_reroll || none.whitespace_stop);
}

TEST(Guards, PMaxIsTheProbabilityOfTheArgmax) {
    EXPECT_FLOAT_EQ(p_max(RowStats{.argmax = 0, .max = 1, .log_sum_exp = 1 + std::log(4.0f)}), 0.25f);
    EXPECT_EQ(p_max(RowStats{.argmax = 0, .max = 3, .log_sum_exp = 3}), 1);
}

TEST(DegenerateGate, OnlyPadAndFillerCount) {
    const Mask free(3, 0);
    EXPECT_TRUE(is_degenerate(Ids{0, 0, 0}, free, 0, 511));
    EXPECT_TRUE(is_degenerate(Ids{0, 511, 0}, free, 0, 511));
    EXPECT_FALSE(is_degenerate(Ids{0, 1, 0}, free, 0, 511));
    EXPECT_FALSE(is_degenerate(Ids{0, 511, 0}, free, 0, -1));
    EXPECT_TRUE(is_degenerate(Ids{0, 9, 0}, Mask{0, 1, 0}, 0, 511));
    EXPECT_FALSE(is_degenerate(Ids{0, 0, 0}, Mask{1, 1, 1}, 0, 511));
}

TEST(EntropyStop, FromTheTwelfthStepBelowTheBound) {
    EXPECT_TRUE(entropy_stop(12, 0.049f));
    EXPECT_FALSE(entropy_stop(11, 0.049f));
    EXPECT_FALSE(entropy_stop(12, 0.05f));
}

TEST(PlateauStop, EightEqualMasksBelowTheBound) {
    EXPECT_TRUE(plateau_stop(8, 0.049f));
    EXPECT_FALSE(plateau_stop(7, 0.049f));
    EXPECT_FALSE(plateau_stop(8, 0.05f));
}

TEST(PrefixExit, NeedsASettledHeadAndAStuckTail) {
    EXPECT_TRUE(prefix_exit(5, 0.04f, true, 0.3f));
    EXPECT_FALSE(prefix_exit(4, 0.04f, true, 0.3f));
    EXPECT_FALSE(prefix_exit(5, 0.05f, true, 0.3f));
    EXPECT_FALSE(prefix_exit(5, 0.04f, false, 0.3f));
    EXPECT_FALSE(prefix_exit(5, 0.04f, true, 0.29f));
}

TEST(ConfidenceTrim, CutsAtTheFirstUnsureTokenThatDoublesItsNeighbour) {
    auto stats = rows_with(0.8f);
    Ids block = distinct();
    EXPECT_EQ(confidence_trim(block, stats, Ids{1}), std::nullopt);  // no doubles
    block[21] = block[20];
    EXPECT_EQ(confidence_trim(block, stats, Ids{1}), 20);
    stats[20] = rows_with(0.95f)[0];
    EXPECT_EQ(confidence_trim(block, stats, Ids{1}), 21);  // the sure one stays
}

TEST(ConfidenceTrim, LeavesTheFirstSixteenAndAllFromTheStopOn) {
    const auto stats = rows_with(0.8f);
    Ids early = distinct();
    early[14] = early[13];
    EXPECT_EQ(confidence_trim(early, stats, Ids{1}), std::nullopt);
    Ids border = distinct();
    border[15] = border[16];
    EXPECT_EQ(confidence_trim(border, stats, Ids{1}), 16);
    Ids late = distinct();
    late[18] = 1;
    late[21] = late[20];
    EXPECT_EQ(confidence_trim(late, stats, Ids{1}), std::nullopt);
}

TEST(HardTrim, CutsBelowTheFloorWhateverTheNeighbours) {
    auto stats = rows_with(0.8f);
    stats[5] = stats[19] = rows_with(0.4f)[0];
    EXPECT_EQ(hard_trim(distinct(), stats, Ids{1}, 0.5f), 19);
    EXPECT_EQ(hard_trim(distinct(), stats, Ids{1}, 0.3f), std::nullopt);
}

TEST(Nonconvergence, LooksAtTheLastEightOfAFullRun) {
    std::vector<float> means(12, 0.3f);
    EXPECT_TRUE(never_settled(means, 12));
    EXPECT_FALSE(never_settled(means, 13));  // it ended early
    means[3] = 0.1f;
    EXPECT_TRUE(never_settled(means, 12));
    means[4] = 0.2f;
    EXPECT_FALSE(never_settled(means, 12));
    EXPECT_FALSE(never_settled({}, 0));
    EXPECT_TRUE(never_settled(std::vector<float>{0.5f}, 1));
}

TEST(WhitespaceStop, EveryIdMustBeSpaceAndThereMustBeOne) {
    const auto is_space = [](std::int32_t id) { return id == 107; };
    EXPECT_TRUE(is_whitespace(Ids{107, 107}, is_space));
    EXPECT_FALSE(is_whitespace(Ids{107, 5}, is_space));
    EXPECT_FALSE(is_whitespace(Ids{}, is_space));
}

TEST(Reroll, CanvasesShrinkAndScaleWithTheModel) {
    const auto lengths = [](int canvas) {
        return std::vector<int>{reroll_canvas_length(canvas, 0), reroll_canvas_length(canvas, 1),
                                reroll_canvas_length(canvas, 2), reroll_canvas_length(canvas, 3)};
    };
    EXPECT_EQ(lengths(256), (std::vector<int>{256, 128, 64, 64}));
    EXPECT_EQ(lengths(128), (std::vector<int>{128, 64, 32, 32}));
    EXPECT_EQ(lengths(32), (std::vector<int>{32, 16, 16, 16}));
    EXPECT_EQ(lengths(8), (std::vector<int>{8, 8, 8, 8}));
}

}  // namespace
}  // namespace dgemma::diffusion
