// A norm of a row by one block: eight columns per thread, the row in registers.
#pragma once

#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/device.cuh"
#include "backend/cuda/e4m3.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int per_thread = 8;
constexpr std::int64_t most_columns = 1024 * per_thread;

// The columns of this thread; beyond the row's end nothing is read or written.
struct Columns {
    explicit __device__ Columns(int cols)
        : first(static_cast<int>(threadIdx.x) * per_thread), inside(first < cols) {}
    int first;
    bool inside;

    template <class T>
    __device__ void load(const T* row, float (&x)[8]) const {
        if (inside) {
            load8(row + first, x);
        } else {
#pragma unroll
            for (float& v : x) v = 0;
        }
    }
    // Eight bf16 as they are.
    [[nodiscard]] __device__ uint4 load_bits(const bf16* row) const {
        return inside ? *reinterpret_cast<const uint4*>(row + first) : uint4{};
    }
    template <class T>
    __device__ void store(T* row, const float (&x)[8]) const {
        if (inside) store8(row + first, x);
    }
};

// mean(x^2 + eps)^-1/2 of the row whose columns the threads hold.
__device__ float row_scale(const float (&x)[8], int cols, float eps, float* shared) {
    float sum = 0;
#pragma unroll
    for (const float v : x) sum += v * v;
    return 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(cols) + eps);
}

// x = rb(x * scale * weight); without a weight, rb(x * scale).
template <class T>
__device__ void normalise(float (&x)[8], float scale, const float* weight, const Columns& columns) {
    float w[8];
    if (weight != nullptr) columns.load(weight, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float y = x[i] * scale;
        x[i] = rounded<T>(weight == nullptr ? y : y * w[i]);
    }
}

// The row whose columns the threads hold, in E4M3 with one scale. By the whole block.
__device__ __forceinline__ void quantise(const float (&x)[8], int cols, const Columns& columns,
                                         const E4m3Target& to, float* shared) {
    float largest = 0;
#pragma unroll
    for (const float v : x) largest = larger_magnitude(largest, v);
    const float scale = e4m3_scale(block_max(largest, shared)), inverse = 1.0f / scale;
    if (threadIdx.x == 0) to.scales[blockIdx.x] = scale;
    if (!columns.inside) return;
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = e4m3_pair(x[2 * i] * inverse, x[2 * i + 1] * inverse);
    *reinterpret_cast<uint2*>(to.codes + static_cast<std::int64_t>(blockIdx.x) * cols + columns.first) =
        make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// Threads of a block over rows of `cols` columns; 0, and a failure, where the rows do not fit.
unsigned row_threads(Context& c, std::int64_t cols) {
    if (c.failed()) return 0;
    if (cols % per_thread != 0 || cols > most_columns) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes a hidden size that is a multiple of 8 and at most "
               "8192: use the CPU for this model");
        return 0;
    }
    return static_cast<unsigned>((cols / per_thread + 31) / 32 * 32);
}

}  // namespace

}  // namespace dgemma::backend::cuda
