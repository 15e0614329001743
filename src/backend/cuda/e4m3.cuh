// Activations in E4M3 on the device, bit for bit as base/e4m3_rows.h has them. Only Hopper's kernels multiply
// such rows, so that older code for these functions is never run.
#pragma once

#include <bit>
#include <cstdint>

#include "backend/cuda/device.cuh"
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

// What stands in the lower and in the upper half of a word, in bf16.
__device__ __forceinline__ float lower_half(std::uint32_t word) { return std::bit_cast<float>(word << 16); }
__device__ __forceinline__ float upper_half(std::uint32_t word) {
    return std::bit_cast<float>(word & 0xFFFF0000u);
}

// The tanh form of GELU as x times a sigmoid, which no rounding near -1 spoils, by the approximations of the
// card: for what is rounded to bf16.
__device__ __forceinline__ float gelu_by_sigmoid(float x) {
#if defined(__CUDA_ARCH__)
    constexpr float root = 0.7978845608028654f, log2_e = 1.4426950408889634f;
    const float exponent = x * fmaf(x * x, -2 * log2_e * root * 0.044715f, -2 * log2_e * root);
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(exponent));
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.0f + power));
    return x * inverse;
#else
    return gelu(x);
#endif
}

// Of two numbers of a hidden layer, rb(rb(gelu(rb(gate))) * rb(up)) in bf16, the first in the lower half.
__device__ __forceinline__ std::uint32_t gated_pair(float gate0, float gate1, float up0, float up1) {
    const std::uint32_t gates = pack2(gate0, gate1), ups = pack2(up0, up1);
    const std::uint32_t factors =
        pack2(gelu_by_sigmoid(lower_half(gates)), gelu_by_sigmoid(upper_half(gates)));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    std::uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(product) : "r"(factors), "r"(ups));
    return product;
#else
    return pack2(lower_half(factors) * lower_half(ups), upper_half(factors) * upper_half(ups));
#endif
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
