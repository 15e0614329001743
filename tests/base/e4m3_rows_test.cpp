// The scalar twin of what the card does to activations in the fp8 profile.
#include "base/e4m3_rows.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace dgemma {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Quantised {
    explicit Quantised(const std::vector<float>& x) : codes(x.size()) { scale = quantise_e4m3(x, codes); }
    [[nodiscard]] float value(std::size_t i) const { return e4m3_to_f32(codes[i]) * scale; }
    std::vector<std::uint8_t> codes;
    float scale = 0;
};

TEST(E4m3Rows, LargestBecomesLargestCode) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> exponent(-100, 100), mantissa(1, 2);
    for (int i = 0; i < 2000; ++i) {
        const float top = std::ldexp(mantissa(random), static_cast<int>(exponent(random)));
        const Quantised q({0, i % 2 == 0 ? top : -top, top / 3});
        EXPECT_EQ(q.codes[1], i % 2 == 0 ? 0x7E : 0xFE) << top;
        EXPECT_NEAR(q.value(1) / top, i % 2 == 0 ? 1 : -1, 0x1p-22);
        EXPECT_EQ(q.codes[0], 0);
    }
}

// With 448 in the row the scale is one, and codes are the numbers rounded: every tie between neighbours goes
// to the even code, the nearest floats beside it go their own ways.
TEST(E4m3Rows, TiesGoToEven) {
    for (unsigned code = 0; code < 0x7E; ++code) {
        const float low = e4m3_to_f32(static_cast<std::uint8_t>(code));
        const float high = e4m3_to_f32(static_cast<std::uint8_t>(code + 1));
        const float middle = (low + high) / 2;  // five bits at most: exact
        const Quantised q(
            {448, middle, -middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 500.0f)});
        const unsigned even = code % 2 == 0 ? code : code + 1;
        EXPECT_EQ(q.scale, 1);
        EXPECT_EQ(q.codes[1], even);
        EXPECT_EQ(q.codes[2], even | 0x80u);
        EXPECT_EQ(q.codes[3], code);
        EXPECT_EQ(q.codes[4], code + 1);
    }
}

TEST(E4m3Rows, SmallNumbersAreOfAnEvenGrid) {
    // Multiples of 2^-9 below 2^-6, and half of the smallest goes to zero.
    const Quantised q({448, 0x1p-9f, 0x3p-9f, 0x1p-10f, 0x3p-10f, -0x1p-10f, 0x7p-9f, 0x7.8p-9f});
    const std::vector<std::uint8_t> want{0x7E, 1, 3, 0, 2, 0x80, 7, 8};
    EXPECT_EQ(q.codes, want);
}

TEST(E4m3Rows, ErrorIsHalfAStepOfTheNumber) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 50; ++round) {
        std::vector<float> x(2816);
        for (float& v : x) v = normal(random);
        const Quantised q(x);
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const float e = std::abs(q.value(i) - x[i]);
            // Three bits of mantissa: 2^-4 of the number, or 2^-10 steps of the scale among the smallest; the
            // inverse and the product round once each.
            EXPECT_LE(e, std::max(std::abs(x[i]) * 0x1p-4f, q.scale * 0x1p-10f) * 1.0001f);
            error += static_cast<double>(e) * e, norm += static_cast<double>(x[i]) * x[i];
        }
        EXPECT_LT(std::sqrt(error / norm), 0.03);
    }
}

TEST(E4m3Rows, ZerosAndTinyRows) {
    const Quantised zeros({0, -0.0f, 0});
    EXPECT_EQ(zeros.scale, 0x1p-126f);
    EXPECT_EQ(zeros.codes, (std::vector<std::uint8_t>{0, 0x80, 0}));
    // Below 448 * 2^-126 the scale stays, and no inverse is infinite.
    const float tiny = 0x1p-126f, denormal = std::numeric_limits<float>::denorm_min();
    const Quantised q({tiny, -2 * tiny, denormal});
    EXPECT_EQ(q.scale, 0x1p-126f);
    EXPECT_EQ(q.value(0), tiny);
    EXPECT_EQ(q.value(1), -2 * tiny);
    EXPECT_EQ(q.codes[2], 0);
}

TEST(E4m3Rows, TheLargestFloatIsNoInfinity) {
    const float most = std::numeric_limits<float>::max();
    const Quantised q({most, most / 4});
    EXPECT_TRUE(std::isfinite(q.scale));
    EXPECT_EQ(q.codes[0], 0x7E);
    EXPECT_NEAR(q.value(1) / most, 0.25, 0.25 / 16);
}

// A row that is not finite must come out of a product as NaN, and its finite neighbours unharmed.
TEST(E4m3Rows, NanAndInfinityStayVisible) {
    const Quantised q({1, kNan, 2, -448});
    EXPECT_EQ(q.scale, 1);
    EXPECT_EQ(q.codes[1] & 0x7Fu, 0x7Fu);
    EXPECT_EQ(q.value(0), 1);
    EXPECT_EQ(q.value(3), -448);
    for (const float infinity : {kInfinity, -kInfinity}) {
        const Quantised i({1, infinity, 0});
        EXPECT_EQ(i.scale, kInfinity);
        EXPECT_EQ(i.codes[1] & 0x7Fu, 0x7Fu);
        EXPECT_TRUE(std::isnan(i.value(0) + i.value(1)));
    }
    const Quantised all({kNan, kNan});
    EXPECT_EQ(all.scale, 0x1p-126f);
    EXPECT_EQ(all.codes[0] & all.codes[1] & 0x7Fu, 0x7Fu);
}

TEST(E4m3Rows, PiecesOfARowHaveTheirOwnScales) {
    std::vector<float> x(96, 1);
    x[0] = 1000, x[70] = 0.3f;
    std::vector<float> pieces = x, whole = x;
    round_to_e4m3(pieces, 64);
    round_to_e4m3(whole);
    EXPECT_NEAR(pieces[70], 0.3f, 0.3f / 16);
    EXPECT_EQ(pieces[95], 1);             // of the largest of the last piece, which is shorter
    EXPECT_NE(pieces[1], 1.0f);           // 1 / (1000 / 448) is no code
    EXPECT_EQ(whole[95], whole[1]);       // all of one scale
    EXPECT_NEAR(pieces[0], 1000, 1e-3f);  // the largest keeps its value but for the scale's rounding
    EXPECT_EQ(pieces[1], whole[1]);
}

}  // namespace
}  // namespace dgemma
