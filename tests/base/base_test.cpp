#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/counter_rng.h"
#include "base/dtype.h"
#include "base/result.h"
#include "base/tensor.h"

namespace dgemma {
namespace {

TEST(Bf16, RoundsToNearestEven) {
    EXPECT_EQ(f32_to_bf16(1.0f), 0x3F80);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000u)),
              0x3F80);  // a tie goes to the even neighbour below
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // and above
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
    EXPECT_EQ(round_bf16(std::sqrt(2816.0f)), 53.0f);  // the embedding scale of contract/model.md 3
    EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7F800001u))));
    EXPECT_TRUE(std::isinf(round_bf16(std::numeric_limits<float>::max())));
}

TEST(F16, DecodesEveryClassOfValue) {
    EXPECT_EQ(f16_to_f32(0x3C00), 1.0f);
    EXPECT_EQ(f16_to_f32(0xC000), -2.0f);
    EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
    EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0f);
    EXPECT_TRUE(std::isinf(f16_to_f32(0x7C00)));
    EXPECT_TRUE(std::isnan(f16_to_f32(0x7E00)));
    EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)));
}

// Known answers of the Random123 distribution.
TEST(Philox, KnownAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

Result<int> half(int x) {
    if (x % 2 != 0) return Error{ErrorKind::invalid, "odd"};
    return x / 2;
}
Result<int> quarter(int x) {
    DGEMMA_TRY(const int h, half(x));
    return half(h);
}

TEST(Result, CarriesValueOrSentence) {
    EXPECT_EQ(quarter(12).value(), 3);
    EXPECT_EQ(quarter(6).error().message, "odd");
}

TEST(Tensor, ReadsUnalignedElements) {
    std::vector<std::byte> bytes(9);
    const float value = 1.5f;
    std::memcpy(bytes.data() + 1, &value, 4);
    EXPECT_EQ(element_as_f32({bytes.data() + 1, Dtype::f32, {2}}, 0), 1.5f);
    EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
}

}  // namespace
}  // namespace dgemma
