// The storage types of tensors, and bf16 as a value.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dgemma {

enum class Dtype : std::uint8_t { f32, f16, bf16, f8_e4m3, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

// Bytes of one element.
constexpr std::size_t size_of(Dtype type) {
    switch (type) {
        case Dtype::i64:
        case Dtype::u64:
            return 8;
        case Dtype::f32:
        case Dtype::i32:
        case Dtype::u32:
            return 4;
        case Dtype::f16:
        case Dtype::bf16:
        case Dtype::i16:
        case Dtype::u16:
            return 2;
        case Dtype::f8_e4m3:
        case Dtype::i8:
        case Dtype::u8:
        case Dtype::boolean:
            return 1;
    }
    return 0;
}

// The name as people write it: "bf16", "f32".
constexpr std::string_view name_of(Dtype type) {
    switch (type) {
        case Dtype::f32:
            return "f32";
        case Dtype::f16:
            return "f16";
        case Dtype::bf16:
            return "bf16";
        case Dtype::f8_e4m3:
            return "f8_e4m3";
        case Dtype::i64:
            return "i64";
        case Dtype::i32:
            return "i32";
        case Dtype::i16:
            return "i16";
        case Dtype::i8:
            return "i8";
        case Dtype::u64:
            return "u64";
        case Dtype::u32:
            return "u32";
        case Dtype::u16:
            return "u16";
        case Dtype::u8:
            return "u8";
        case Dtype::boolean:
            return "bool";
    }
    return "?";
}

// bf16 is the upper half of an f32.
constexpr float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Nearest bf16, ties to even. A NaN stays a NaN (the usual rounding would turn some into infinities).
constexpr std::uint16_t f32_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// rb(x) of the contract: x rounded to bf16, still held as f32.
constexpr float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

float f16_to_f32(std::uint16_t bits);
// Nearest f16, ties to even; what is too large becomes an infinity. A NaN stays one.
std::uint16_t f32_to_f16(float value);

}  // namespace dgemma
