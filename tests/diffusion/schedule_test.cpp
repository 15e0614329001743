#include "diffusion/schedule.h"

#include <array>
#include <bit>
#include <cstdint>
#include <set>

#include <gtest/gtest.h>

namespace dgemma::diffusion {
namespace {

// T of n = 1..48 with N = 48, 0.4 and 0.8: computed once outside this code by rounding every f32 operation of
// contract/generation.md 3.
constexpr std::array<std::uint32_t, 48> kExpected = {
    0x3ED11111u, 0x3ED55556u, 0x3ED9999Au, 0x3EDDDDDEu, 0x3EE22222u, 0x3EE66667u, 0x3EEAAAABu, 0x3EEEEEEFu,
    0x3EF33334u, 0x3EF77778u, 0x3EFBBBBCu, 0x3F000000u, 0x3F022222u, 0x3F044444u, 0x3F066666u, 0x3F088889u,
    0x3F0AAAABu, 0x3F0CCCCDu, 0x3F0EEEEFu, 0x3F111111u, 0x3F133333u, 0x3F155556u, 0x3F177778u, 0x3F19999Au,
    0x3F1BBBBCu, 0x3F1DDDDEu, 0x3F200000u, 0x3F222222u, 0x3F244444u, 0x3F266666u, 0x3F288888u, 0x3F2AAAABu,
    0x3F2CCCCDu, 0x3F2EEEEFu, 0x3F311112u, 0x3F333334u, 0x3F355556u, 0x3F377778u, 0x3F39999Au, 0x3F3BBBBCu,
    0x3F3DDDDEu, 0x3F400000u, 0x3F422222u, 0x3F444444u, 0x3F466666u, 0x3F488888u, 0x3F4AAAABu, 0x3F4CCCCDu};

TEST(Schedule, AllTemperaturesAreBitEqualToTheReference) {
    for (int n = 1; n <= 48; ++n)
        EXPECT_EQ(std::bit_cast<std::uint32_t>(temperature(n, 48, 0.4, 0.8)),
                  kExpected[static_cast<std::size_t>(n - 1)])
            << "n = " << n;
}

TEST(Schedule, TwelveDifferFromAnEvaluationInDouble) {
    std::set<int> different;
    for (int n = 1; n <= 48; ++n)
        if (temperature(n, 48, 0.4, 0.8) != static_cast<float>(0.4 + (0.8 - 0.4) * (n / 48.0)))
            different.insert(n);
    EXPECT_EQ(different, (std::set<int>{2, 6, 9, 10, 22, 23, 31, 35, 36, 37, 38, 46}));
}

TEST(Schedule, StartsAtTheTopAndStaysAboveTheBottom) {
    EXPECT_EQ(temperature(48, 48, 0.4, 0.8), 0.8f);
    EXPECT_GT(temperature(1, 48, 0.4, 0.8), 0.4f);
    EXPECT_EQ(temperature(1, 1, 0.0, 1.0), 1.0f);
}

}  // namespace
}  // namespace dgemma::diffusion
