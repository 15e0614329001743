// Activations in E4M3, as a product of the fp8 profile takes them: a piece of a row (all of it, or a run of
// its columns) becomes codes with one f32 scale, value = code * scale. The scalar twin of
// backend/cuda/e4m3.cuh, which computes the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "base/small_floats.h"

namespace dgemma {

// Columns of a hidden layer (between the matrices of a gated MLP) that share a scale. A whole row of it is
// never in one hand on the card, and finer scales are no less exact.
inline constexpr std::int64_t kE4m3HiddenColumns = 128;

// The scale of `x`: its largest magnitude / 448, so that the largest becomes the largest code; at least
// 2^-126, so that its inverse is finite and zeros stay zeros. A NaN counts for nothing here, it becomes a NaN
// of its own.
constexpr float e4m3_scale(std::span<const float> x) {
    float largest = 0;
    for (const float v : x) {
        const float magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu);
        if (magnitude > largest) largest = magnitude;
    }
    const float scale = largest / kLargestE4m3;
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}

// codes[i]: nearest E4M3 of x[i] * (1 / scale), ties to even. -> the scale. NaN becomes the code of NaN; with
// an infinity in it (scale infinite, inverse zero) a piece becomes that infinity's NaN and zeros times
// infinity: whoever multiplies it gets NaN either way.
constexpr float quantise_e4m3(std::span<const float> x, std::span<std::uint8_t> codes) {
    const float scale = e4m3_scale(x), inverse = 1.0f / scale;
    for (std::size_t i = 0; i < x.size(); ++i) codes[i] = f32_to_e4m3(x[i] * inverse);
    return scale;
}

// The values that x [columns] then stands for, in place: every `piece` columns with a scale of their own, 0:
// all with one.
inline void round_to_e4m3(std::span<float> x, std::int64_t piece = 0) {
    const std::size_t step = piece > 0 ? static_cast<std::size_t>(piece) : x.size();
    for (std::size_t at = 0; at < x.size(); at += step) {
        const std::span<float> part = x.subspan(at, step < x.size() - at ? step : x.size() - at);
        const float scale = e4m3_scale(part), inverse = 1.0f / scale;
        for (float& v : part) v = e4m3_to_f32(f32_to_e4m3(v * inverse)) * scale;
    }
}

}  // namespace dgemma
