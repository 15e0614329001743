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

// Eight elements as they lie in memory: rounded, and fetched without being waited for.
template <class T>
struct Eight;
template <>
struct Eight<bf16> {
    uint4 bits;
    __device__ __forceinline__ void fetch(const bf16* row, const Columns& columns) {
        bits = columns.load_bits(row);
    }
    __device__ __forceinline__ void store(bf16* row, const Columns& columns) const {
        if (columns.inside) *reinterpret_cast<uint4*>(row + columns.first) = bits;
    }
    // Two at a time: one conversion where single ones are two, and slow.
    __device__ __forceinline__ void round(const float (&x)[8]) {
        bits = make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
    }
    __device__ __forceinline__ void unpack(float (&x)[8]) const { unpack8(bits, x); }
    // A sum of two bf16 rounded once is what an addition of bf16 gives.
    __device__ __forceinline__ void add(const Eight& other) {
        bits = make_uint4(sum(bits.x, other.bits.x), sum(bits.y, other.bits.y), sum(bits.z, other.bits.z),
                          sum(bits.w, other.bits.w));
    }
    __device__ static __forceinline__ std::uint32_t sum(std::uint32_t a, std::uint32_t b) {
        const __nv_bfloat162 both = __hadd2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                               *reinterpret_cast<const __nv_bfloat162*>(&b));
        return *reinterpret_cast<const std::uint32_t*>(&both);
    }
};
template <>
struct Eight<float> {
    float x[8];
    __device__ __forceinline__ void fetch(const float* row, const Columns& columns) { columns.load(row, x); }
    __device__ __forceinline__ void store(float* row, const Columns& columns) const { columns.store(row, x); }
    __device__ __forceinline__ void round(const float (&y)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = y[i];
    }
    __device__ __forceinline__ void unpack(float (&y)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = x[i];
    }
    __device__ __forceinline__ void add(const Eight& other) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] += other.x[i];
    }
};

// x = rb(x)
template <class T>
__device__ __forceinline__ void round8(float (&x)[8]) {
    Eight<T> rounded;
    rounded.round(x);
    rounded.unpack(x);
}

// The columns of a norm's weight; ones where there is none.
__device__ __forceinline__ void load_weight(const float* weight, const Columns& columns, float (&w)[8]) {
    if (weight != nullptr) {
        columns.load(weight, w);
    } else {
#pragma unroll
        for (float& v : w) v = 1;
    }
}

// Each x becomes its sum over the block, by one barrier, in the order of block_sum. The block is of whole
// warps; two calls in a row need two such places.
template <int N>
__device__ __forceinline__ void block_sums(float (&x)[N], float (*shared)[32]) {
    const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (float& v : x) v = warp_sum(v);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (lane == 0) shared[n][threadIdx.x / 32] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = warp_sum(lane < warps ? shared[n][lane] : 0.0f);
}

__device__ __forceinline__ float sum_of_squares(const float (&x)[8]) {
    float sum = 0;
#pragma unroll
    for (const float v : x) sum += v * v;
    return sum;
}

// mean(x^2 + eps)^-1/2 of a row, from the sum of its squares.
__device__ __forceinline__ float scale_of_row(float squares, int cols, float eps) {
    return 1.0f / sqrtf(squares / static_cast<float>(cols) + eps);
}
// The same of the row whose columns the threads hold.
__device__ __forceinline__ float row_scale(const float (&x)[8], int cols, float eps, float* shared) {
    return scale_of_row(block_sum(sum_of_squares(x), shared), cols, eps);
}

// x = x * scale * w
__device__ __forceinline__ void scale8(float (&x)[8], float scale, const float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * scale * w[i];
}

// x = rb(x * scale * weight); without a weight, rb(x * scale).
template <class T>
__device__ void normalise(float (&x)[8], float scale, const float* weight, const Columns& columns) {
    float w[8];
    load_weight(weight, columns, w);
    scale8(x, scale, w);
    round8<T>(x);
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
