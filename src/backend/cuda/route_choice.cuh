// The choice of a row's experts from its logits.
#pragma once

#include "backend/cuda/device.cuh"

namespace dgemma::backend::cuda {

namespace {

// The largest of a warp's numbers.
__device__ __forceinline__ float largest(float x) {
    // As whole numbers of the same order.
    const int bits = __float_as_int(x), ordered = bits < 0 ? bits ^ 0x7FFFFFFF : bits;
    const int top = __reduce_max_sync(0xFFFFFFFFu, ordered);
    return __int_as_float(top < 0 ? top ^ 0x7FFFFFFF : top);
}

// By one warp, whose lane l holds the logits of the experts 4 l to 4 l + 3 of each of `Quads` groups of 128
// in p, not yet rounded. -> the expert of this lane's choice, `experts` for the lanes without one.
template <class T, int Quads>
__device__ int choose(float (&p)[4 * Quads], const float* per_expert_scale, int row, int experts, int k,
                      std::int32_t* ids, float* weights, float* probabilities) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto expert = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expert(i) < experts ? rounded<T>(p[i]) : -INFINITY;
        top = fmaxf(top, p[i]);
    }
    top = warp_max(top);
    float all = 0;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expf(p[i] - top);
        if (expert(i) < experts) all += p[i];
    }
    all = warp_sum(all);
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] /= all;
        if (probabilities != nullptr && expert(i) < experts)
            probabilities[static_cast<std::int64_t>(row) * experts + expert(i)] = p[i];
        // A broken row still gets k distinct experts: a NaN is never the largest, and what is taken is
        // smaller yet.
        if (!(p[i] >= 0)) p[i] = -1;
        if (expert(i) >= experts) p[i] = -3;
    }
    float chosen = 0, own_p = 0;
    int own_id = experts;
    for (int round = 0; round < k; ++round) {
        float best = -4;
        int best_id = 0x7FFFFFFF;
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (p[i] > best) best = p[i], best_id = expert(i);
        }
        const float top_p = largest(best);
        const int top_id = static_cast<int>(
            __reduce_min_sync(0xFFFFFFFFu, best == top_p ? static_cast<unsigned>(best_id) : ~0u));
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (expert(i) == top_id) p[i] = -2;
        }
        chosen += top_p;  // from the largest down
        if (lane == round) own_id = top_id, own_p = top_p;
    }
    int place = 0;
    for (int other = 0; other < k; ++other) place += __shfl_sync(0xFFFFFFFFu, own_id, other) < own_id;
    if (lane < k) {
        const std::int64_t at = static_cast<std::int64_t>(row) * k + place;
        ids[at] = own_id;
        weights[at] = own_p / chosen * per_expert_scale[own_id];
    }
    return own_id;
}

}  // namespace

}  // namespace dgemma::backend::cuda
