// Activations in E4M3 on the device, bit for bit as base/e4m3_rows.h has them. Only Hopper's kernels multiply
// such rows, so that older code for these functions is never run.
#pragma once

#include <cstdint>

#include "backend/cuda/device.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/kernels.h"
#include "base/small_floats.h"

namespace dgemma::backend::cuda {

// Of the largest magnitude of a piece of a row. Both divisions are those of IEEE 754, as on the CPU.
__device__ __forceinline__ float e4m3_scale(float largest) {
    return fmaxf(largest / kLargestE4m3, 0x1p-126f);
}

// The nearest codes, ties to even, of two numbers; the first in the lower byte. What is too large becomes the
// largest, a NaN stays one.
__device__ __forceinline__ std::uint32_t e4m3_pair(float low, float high) {
    std::uint16_t pair = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(high), "f"(low));
#else
    pair = static_cast<std::uint16_t>(f32_to_e4m3(low) | f32_to_e4m3(high) << 8);
#endif
    return pair;
}

// Of both halves of two words in bf16, the larger magnitude, NaNs aside.
__device__ __forceinline__ std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
    a &= 0x7FFF7FFFu, b &= 0x7FFF7FFFu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t larger;
    asm("max.bf16x2 %0, %1, %2;\n" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
#else
    return pack2(fmaxf(lower_half(a), lower_half(b)), fmaxf(upper_half(a), upper_half(b)));
#endif
}

// The larger magnitude, NaNs aside.
__device__ __forceinline__ float larger_magnitude(float largest, float x) { return fmaxf(largest, fabsf(x)); }

// The largest over a block of at most 1024 threads, in every thread, of numbers that are not negative.
// `shared` as in block_sum.
__device__ __forceinline__ float block_max(float x, float* shared) {
    x = warp_max(x);
    const int warps = static_cast<int>(blockDim.x + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(lane < warps ? shared[lane] : 0.0f);
}

}  // namespace dgemma::backend::cuda
