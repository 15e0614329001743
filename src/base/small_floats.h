// The eight- and four-bit floating types of quantised weights as values.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace dgemma {

// E4M3: sign, exponent of four bits with bias 7, three bits of mantissa; 0x7F and 0xFF are NaN and there is
// no infinity (contract/checkpoints.md 2).
inline constexpr float kLargestE4m3 = 448;
// E2M1: sign, exponent of two bits with bias 1, one bit of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
inline constexpr float kLargestE2m1 = 6;

constexpr float e4m3_to_f32(std::uint8_t code) {
    const unsigned exponent = code >> 3 & 15u;
    const unsigned mantissa = code & 7u;
    float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    if (exponent == 15 && mantissa == 7) {
        magnitude = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent != 0) {
        magnitude = std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
    }
    return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

// Nearest E4M3, ties to even; what is too large becomes the largest. A NaN stays one.
constexpr std::uint8_t f32_to_e4m3(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 24 & 0x80u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
    std::uint32_t code = 0;
    if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6f)) {
        // Below the smallest normal number the grid is even: multiples of 2^-9.
        constexpr float magic = 0x1.8p+23f;  // adding it rounds to a whole number
        code = static_cast<std::uint32_t>((std::bit_cast<float>(magnitude) * 512 + magic) - magic);
    } else if (magnitude >= std::bit_cast<std::uint32_t>(kLargestE4m3)) {
        code = 0x7E;
    } else {
        code = ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    }
    return static_cast<std::uint8_t>(sign | code);
}

// `code` of four bits.
constexpr float e2m1_to_f32(unsigned code) {
    constexpr std::array<float, 8> values{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return (code & 8u) != 0 ? -values[code & 7u] : values[code & 7u];
}

// Nearest E2M1, ties to even; what is too large becomes the largest. Not for a NaN.
constexpr unsigned f32_to_e2m1(float value) {
    const float a = value < 0 ? -value : value;
    const unsigned sign = (std::bit_cast<std::uint32_t>(value) >> 31) * 8;
    const unsigned code = a <= 0.25f   ? 0
                          : a < 0.75f  ? 1
                          : a <= 1.25f ? 2
                          : a < 1.75f  ? 3
                          : a <= 2.5f  ? 4
                          : a < 3.5f   ? 5
                          : a <= 5     ? 6
                                       : 7;
    return sign | code;
}

}  // namespace dgemma
