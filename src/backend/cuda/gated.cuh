// The gated product of an MLP's hidden layer, for what is rounded to bf16.
#pragma once

#include <bit>
#include <cstdint>

#include "backend/cuda/device.cuh"

namespace dgemma::backend::cuda {

// What stands in the lower and in the upper half of a word, in bf16.
__device__ __forceinline__ float lower_half(std::uint32_t word) { return std::bit_cast<float>(word << 16); }
__device__ __forceinline__ float upper_half(std::uint32_t word) {
    return std::bit_cast<float>(word & 0xFFFF0000u);
}

// The tanh form of GELU as x times a sigmoid, which no rounding near -1 spoils, by the approximations of the
// card: for what is rounded to bf16.
__device__ __forceinline__ float gelu_by_sigmoid(float x) {
#if defined(__CUDA_ARCH__)
    constexpr float root = 0.7978845608028654f;
    const float exponent = x * fmaf(x * x, -2 * log2e * root * 0.044715f, -2 * log2e * root);
    return x * reciprocal(1.0f + power_of_two(exponent));
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

}  // namespace dgemma::backend::cuda
