// The operations of one row, written once as the contract states them (contract/model.md 3). The reference
// backend is made of them; the plain one takes those that cost nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace dgemma::backend::cpu {

inline float rounded(float x, bool bf16) { return bf16 ? round_bf16(x) : x; }

// RMSNorm: f32 throughout, mean of squares plus eps to the power -1/2, no 1 + w, one rounding at the end.
inline void rms_norm_row(const float* x, const float* weight, std::int64_t n, float eps, bool bf16,
                         float* out) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
    const float scale = std::pow(static_cast<float>(sum / static_cast<double>(n)) + eps, -0.5f);
    for (std::int64_t i = 0; i < n; ++i) {
        const float y = x[i] * scale;
        out[i] = rounded(weight == nullptr ? y : y * weight[i], bf16);
    }
}

// The tanh form of GELU.
inline float gelu(float x) {
    constexpr float root = 0.7978845608028654f;  // sqrt(2 / pi)
    return 0.5f * x * (1.0f + std::tanh(root * (x + 0.044715f * x * x * x)));
}

// One head [D] in place; cos and sin are rounded to bf16 before use, products and sums after (contract 3,
// "RoPE").
inline void rotate_head(float* x, std::int64_t head_dim, const float* frequencies, std::int32_t position,
                        bool bf16) {
    const std::int64_t half = head_dim / 2;
    for (std::int64_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(position) * frequencies[d];
        const float c = rounded(std::cos(angle), bf16);
        const float s = rounded(std::sin(angle), bf16);
        const float a = x[d];
        const float b = x[d + half];
        x[d] = rounded(rounded(a * c, bf16) + rounded(-b * s, bf16), bf16);
        x[d + half] = rounded(rounded(b * c, bf16) + rounded(a * s, bf16), bf16);
    }
}

// Router probabilities p [E] (softmax of z, in place) -> the k largest, ties to the lowest index, in
// ascending id, with weights p / sum * per_expert_scale.
inline void choose_experts(float* z, std::int64_t experts, const float* per_expert_scale, std::int64_t k,
                           std::int32_t* ids, float* weights) {
    const float top = *std::max_element(z, z + experts);
    float sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += z[e] = std::exp(z[e] - top);
    for (std::int64_t e = 0; e < experts; ++e) z[e] /= sum;
    // k rounds of "the largest not yet taken": a NaN is never larger, so a broken row still yields k distinct
    // ids.
    std::vector<std::uint8_t> taken(static_cast<std::size_t>(experts));
    float chosen = 0;  // summed from the largest down, as the reference does
    for (std::int64_t i = 0; i < k; ++i) {
        std::int64_t best = -1;
        for (std::int64_t e = 0; e < experts; ++e) {
            if (taken[static_cast<std::size_t>(e)] == 0 && (best < 0 || z[e] > z[best])) best = e;
        }
        taken[static_cast<std::size_t>(best)] = 1;
        ids[i] = static_cast<std::int32_t>(best);
        chosen += z[best];
    }
    std::sort(ids, ids + k);
    for (std::int64_t i = 0; i < k; ++i) weights[i] = z[ids[i]] / chosen * per_expert_scale[ids[i]];
}

}  // namespace dgemma::backend::cpu
