// How the parts of a row's attention, of which each has some of its keys, come together: one after another,
// whether another kernel does it or the block that made them, so that the bits are the same.
#pragma once

#include "backend/cuda/device.cuh"

namespace dgemma::backend::cuda {

// The parts so far of a row and head.
struct PartsOfRow {
    // The next part: the maximum of its scores (-inf: it has no keys, and counts for nothing, whatever its
    // sums are) and the sum of its weights.
    __device__ __forceinline__ void add(float part_top, float part_sum) {
        counts = part_top != -INFINITY;
        if (!counts) return;
        const float higher = fmaxf(top, part_top);
        keep = power_of_two((top - higher) * log2e);
        share = power_of_two((part_top - higher) * log2e);
        sum = fmaf(part_sum, share, sum * keep);
        top = higher;
    }
    // A column of the parts so far, in which that part has x; `before` is that of the parts before it, of
    // none 0.
    [[nodiscard]] __device__ __forceinline__ float with(float before, float x) const {
        return counts ? fmaf(x, share, before * keep) : before;
    }

    float top = -INFINITY, sum = 0;
    float keep = 1, share = 0;  // what the parts before that part, and it, count for
    bool counts = false;
};

}  // namespace dgemma::backend::cuda
