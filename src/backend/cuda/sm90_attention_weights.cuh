// From the scores of a tile's keys to weights, in Hopper's attention.
#pragma once

#include "backend/cuda/sm90_attention.cuh"

namespace dgemma::backend::cuda {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a thread of a multiplying warpgroup knows of its two rows, and what it does with their scores.
template <int Dim>
struct Weighing {
    using P = Plan<Dim>;
    static constexpr int own_keys = P::wide ? 32 : 64;
    static constexpr int count = own_keys / 2;  // scores of a thread

    // Of the keys of a tile, scores become weights.
    __device__ __forceinline__ void weigh(const Task& task, Shared<Dim>& s, int tile,
                                          float (&scores)[count]) {
        const int first = tile * keys_of_tile;
        if (first < task.all_begin || first + keys_of_tile > task.all_end) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int at = first + key0 + lane % 4 * 2;
                const int begin = s.begin[row0 + 8 * h] - at, end = s.end[row0 + 8 * h] - at;
#pragma unroll
                for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        if (8 * j + c < begin || 8 * j + c >= end) scores[4 * j + 2 * h + c] = -INFINITY;
                    }
                }
            }
        }
        float highest[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float high = -INFINITY;
#pragma unroll
            for (int j = 0; j < own_keys / 8; ++j)
                high = fmaxf(high, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
            highest[h] = high;
            if (P::wide && lane % 4 == 0) s.top[warpgroup][row0 + 8 * h] = high;
        }
        if (P::wide) {
            // Both have their maxima, and are through with the weights of the tile before.
            asm volatile("bar.sync 1, 256;\n" ::: "memory");
#pragma unroll
            for (int h = 0; h < 2; ++h) highest[h] = fmaxf(highest[h], s.top[1 - warpgroup][row0 + 8 * h]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float higher = fmaxf(top[h], highest[h]);
            const float base = higher == -INFINITY ? 0.0f : higher;
            // Exactly one where the maximum is the old one.
            keep[h] = power_of_two((top[h] - base) * log2e);
            top[h] = higher;
            const float below = base * -log2e;
            float added = 0;
#pragma unroll
            for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = scores[4 * j + 2 * h + c];
                    x = power_of_two(fmaf(x, log2e, below));
                    added += x;
                }
            }
            sum[h] = sum[h] * keep[h] + added;
        }
    }
    // The sums of the tiles before, for which another maximum may have held.
    __device__ __forceinline__ void rescale(float (&out)[128]) const {
        if (!__any_sync(0xFFFFFFFFu, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            out[4 * j] *= keep[0], out[4 * j + 1] *= keep[0];
            out[4 * j + 2] *= keep[1], out[4 * j + 3] *= keep[1];
        }
    }

    // The keys that come now are another part's.
    __device__ __forceinline__ void begin_part() {
#pragma unroll
        for (int h = 0; h < 2; ++h) top[h] = -INFINITY, sum[h] = 0, keep[h] = 1;
    }

    int warpgroup, lane, row0, key0;  // rows row0 and row0 + 8; the tile's keys from key0 on
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2] = {1, 1};
};

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
