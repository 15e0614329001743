// The matrix instruction for E4M3 on the emulated machine.
#pragma once

#include "backend/cuda/sm90_wgmma.cuh"

namespace dgemma::backend::cuda {

template <int N>
struct WarpgroupMultiplyE4m3 {
    static void run(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool keep) {
        multiply_later<N, 32>(d, a, b, keep, [](std::uint64_t descriptor, int row, int k) {
            return e4m3_to_f32(*byte_of(descriptor, row, k));
        });
    }
};

}  // namespace dgemma::backend::cuda
