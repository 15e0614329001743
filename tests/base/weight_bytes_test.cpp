#include "base/weight_bytes.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/small_floats.h"

namespace dgemma {
namespace {

WeightBytes total(const Shape& shape, Encoding encoding, Layout layout, Dtype type = Dtype::bf16) {
    const auto grid = weight_grid(shape, encoding, layout, type);
    EXPECT_TRUE(grid) << to_string(shape);
    return grid ? grid->total() : WeightBytes{};
}

void expect_bytes(const WeightBytes& bytes, std::uint64_t codes, std::uint64_t scales, std::uint64_t biases,
                  std::uint64_t globals) {
    EXPECT_EQ(bytes.codes, codes);
    EXPECT_EQ(bytes.scales, scales);
    EXPECT_EQ(bytes.biases, biases);
    EXPECT_EQ(bytes.globals, globals);
}

TEST(WeightBytes, FollowFromShapeEncodingAndLayout) {
    const Shape bank{128, 1408, 2816};
    const std::uint64_t n = 128ull * 1408 * 2816;
    expect_bytes(total(bank, Encoding::plain, Layout::tiles), 2 * n, 0, 0, 0);
    expect_bytes(total(bank, Encoding::affine8, Layout::tiles), n, n / 16, n / 16, 0);
    expect_bytes(total(bank, Encoding::affine4, Layout::tiles), n / 2, n / 16, n / 16, 0);
    expect_bytes(total(bank, Encoding::fp8_row, Layout::rows), n, 128 * 1408 * 4, 0, 0);
    expect_bytes(total(bank, Encoding::nvfp4, Layout::rows), n / 2, n / 16, 0, 128 * 4);
    // 33 rows fill two tiles of each matrix.
    expect_bytes(total({2, 33, 64}, Encoding::affine4, Layout::tiles), 2 * 64 * 32, 2 * 64 * 4, 2 * 64 * 4,
                 0);
    expect_bytes(total({2, 33, 64}, Encoding::affine4, Layout::rows), 2 * 33 * 32, 2 * 33 * 4, 2 * 33 * 4, 0);
    expect_bytes(total({7}, Encoding::plain, Layout::rows, Dtype::f32), 28, 0, 0, 0);
    expect_bytes(total({}, Encoding::plain, Layout::rows, Dtype::f16), 2, 0, 0, 0);
}

TEST(WeightBytes, RowsAndMatricesFollowOneAnother) {
    const auto grid = weight_grid({3, 70, 96}, Encoding::affine8, Layout::tiles, Dtype::bf16);
    ASSERT_TRUE(grid);
    EXPECT_EQ(grid->tiles, 3);
    expect_bytes(grid->offset(2, 64), (2 * 96 + 64) * 96, (2 * 96 + 64) * 6, (2 * 96 + 64) * 6, 0);
    expect_bytes(weight_grid({3, 70, 96}, Encoding::nvfp4, Layout::rows, Dtype::bf16)->offset(2, 5), 145 * 48,
                 145 * 6, 0, 8);
}

TEST(WeightBytes, WhatDoesNotExistHasNone) {
    const auto none = [](const Shape& shape, Encoding encoding, Layout layout, Dtype type = Dtype::bf16) {
        return !weight_grid(shape, encoding, layout, type);
    };
    EXPECT_TRUE(none({1152, 4304}, Encoding::affine8, Layout::tiles));  // 4304 = 269 * 16
    EXPECT_FALSE(none({1152, 4304}, Encoding::nvfp4, Layout::rows));
    EXPECT_TRUE(none({8, 24}, Encoding::nvfp4, Layout::rows));
    EXPECT_TRUE(none({8, 33}, Encoding::plain, Layout::tiles));
    EXPECT_TRUE(none({8, 32}, Encoding::plain, Layout::tiles, Dtype::f32));
    EXPECT_TRUE(none({8, 32}, Encoding::fp8_row, Layout::tiles));
    EXPECT_TRUE(none({32}, Encoding::affine8, Layout::rows));
    EXPECT_TRUE(none({32}, Encoding::plain, Layout::tiles));
    EXPECT_TRUE(none({0, 32}, Encoding::plain, Layout::rows));
    EXPECT_TRUE(none({-1, 32}, Encoding::plain, Layout::rows));
    EXPECT_TRUE(none({std::int64_t{1} << 40, std::int64_t{1} << 40}, Encoding::plain, Layout::rows));
    EXPECT_TRUE(none({std::int64_t{1} << 52, 2}, Encoding::plain, Layout::rows));
    EXPECT_TRUE(none({std::numeric_limits<std::int64_t>::max()}, Encoding::plain, Layout::rows));
}

TEST(SmallFloats, EightBitsGiveBackTheirCode) {
    for (unsigned code = 0; code < 256; ++code) {
        const float value = e4m3_to_f32(static_cast<std::uint8_t>(code));
        if ((code & 0x7F) == 0x7F) {
            EXPECT_TRUE(std::isnan(value));
            EXPECT_EQ(f32_to_e4m3(value), code);
            continue;
        }
        EXPECT_EQ(f32_to_e4m3(value), code);
        // Halfway to the next code goes to the even one, anything beyond it up.
        if ((code & 0x7F) >= 0x7E) continue;
        const float middle = (value + e4m3_to_f32(static_cast<std::uint8_t>(code + 1))) / 2;
        EXPECT_EQ(f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1);
        EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, code < 128 ? 1e9f : -1e9f)), code + 1);
        EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 0.0f)), code);
    }
    EXPECT_EQ(e4m3_to_f32(0x7E), 448);
    EXPECT_EQ(e4m3_to_f32(1), 0x1p-9f);
    EXPECT_EQ(f32_to_e4m3(1e30f), 0x7E);
    EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(SmallFloats, FourBitsGiveBackTheirCode) {
    for (unsigned code = 0; code < 16; ++code) {
        const float value = e2m1_to_f32(code);
        EXPECT_EQ(f32_to_e2m1(value), code);
        if ((code & 7) == 7) continue;
        const float middle = (value + e2m1_to_f32(code + 1)) / 2;
        EXPECT_EQ(f32_to_e2m1(middle), code % 2 == 0 ? code : code + 1) << code;
        EXPECT_EQ(f32_to_e2m1(std::nextafter(middle, code < 8 ? 9.0f : -9.0f)), code + 1);
    }
    EXPECT_EQ(f32_to_e2m1(100), 7u);
}

TEST(SmallFloats, HalvesGiveBackTheirBits) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const float value = f16_to_f32(static_cast<std::uint16_t>(bits));
        if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
        } else {
            ASSERT_EQ(f32_to_f16(value), bits);
        }
        if ((bits & 0x7FFF) >= 0x7BFF) continue;
        const float middle = (value + f16_to_f32(static_cast<std::uint16_t>(bits + 1))) / 2;
        ASSERT_EQ(f32_to_f16(middle), bits % 2 == 0 ? bits : bits + 1);
    }
    EXPECT_EQ(f32_to_f16(65519.9f), 0x7BFF);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
    EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
}

}  // namespace
}  // namespace dgemma
