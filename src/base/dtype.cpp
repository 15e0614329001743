#include "base/dtype.h"

namespace dgemma {

float f16_to_f32(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal halves are exact in f32
    return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t f32_to_f16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    std::uint32_t out = 0x7C00u;  // an infinity
    if (magnitude > 0x7F800000u) {
        out = 0x7E00u;
    } else if (magnitude < 0x38800000u) {
        // Below 2^-14 the grid is even: multiples of 2^-24.
        constexpr float magic = 0x1.8p+23f;  // adding it rounds to a whole number
        out = static_cast<std::uint32_t>((std::bit_cast<float>(magnitude) * 0x1p24f + magic) - magic);
    } else if (magnitude < 0x477FF000u) {
        out = ((magnitude + 0xFFFu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
    }
    return static_cast<std::uint16_t>(sign | out);
}

}  // namespace dgemma
