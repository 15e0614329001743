// The parts of attention, which blocks made of a row's keys, brought together.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_splits = 4;
constexpr float log2e = 1.4426950408889634f;

// Loads that come in this order: the parts, of which nothing depends but the result, before the ends, which
// the compiler would rather wait for first.
__device__ __forceinline__ float4 load_ahead(const float* from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from));
    return x;
}
__device__ __forceinline__ float2 load_ahead(const float2* from) {
    float2 x;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "l"(from));
    return x;
}

// The ends of a row's and head's parts, [splits, count]: maximum and sum.
template <int Splits>
struct Ends {
    __device__ __forceinline__ Ends(const float2* ends, std::int64_t at, std::int64_t count) {
#pragma unroll
        for (int s = 0; s < Splits; ++s) end[s] = load_ahead(ends + s * count + at);
    }
    float2 end[Splits];
};

// What each part counts for. A part without keys counts for nothing, whatever lies there.
template <int Splits>
struct Shares {
    explicit __device__ __forceinline__ Shares(const Ends<Splits>& ends) {
        float top = -INFINITY, all = 0;
#pragma unroll
        for (const float2& end : ends.end) top = fmaxf(top, end.x);
#pragma unroll
        for (int s = 0; s < Splits; ++s) {
            const float2 end = ends.end[s];
            share[s] = end.x == -INFINITY ? 0.0f : exp2f((end.x - top) * log2e);
            all += share[s] * end.y;
        }
        whole = 1.0f / all;
    }
    // Four columns of all parts.
    template <int Fours>
    [[nodiscard]] __device__ __forceinline__ float4 merged(const float4 (&x)[Splits][Fours], int i) const {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int s = 0; s < Splits; ++s) {
            if (share[s] == 0.0f) continue;
            sum.x += share[s] * x[s][i].x, sum.y += share[s] * x[s][i].y;
            sum.z += share[s] * x[s][i].z, sum.w += share[s] * x[s][i].w;
        }
        return make_float4(sum.x * whole, sum.y * whole, sum.z * whole, sum.w * whole);
    }
    float share[Splits], whole;
};

// One warp per row and head, of which a lane has four columns of each 128.
template <int Splits, int Fours>
__global__ void __launch_bounds__(256) attention_merge_kernel(const float* sums, const float2* part_ends,
                                                              std::int64_t count, int dim, bf16* out) {
    begin_kernel();
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (at >= count) return;
    const int first = static_cast<int>(threadIdx.x) % 32 * 4;
    float4 x[Splits][Fours];
#pragma unroll
    for (int s = 0; s < Splits; ++s) {
#pragma unroll
        for (int i = 0; i < Fours; ++i) {
            // What lies beyond the row's end is read inside it, and dropped.
            const int column = min(first + 128 * i, dim - 4);
            x[s][i] = load_ahead(sums + (s * count + at) * dim + column);
        }
    }
    __syncwarp();  // over which no load is moved
    const Shares<Splits> shares(Ends<Splits>(part_ends, at, count));
#pragma unroll
    for (int i = 0; i < Fours; ++i) {
        const float4 four = shares.merged(x, i);
        if (first + 128 * i < dim) {
            *reinterpret_cast<uint2*>(out + at * dim + first + 128 * i) =
                make_uint2(pack2(four.x, four.y), pack2(four.z, four.w));
        }
    }
}

// One block per row, eight columns of a head a thread: the same numbers, and in E4M3.
template <int Splits>
__global__ void attention_merge_in_e4m3_kernel(const float* sums, const float2* part_ends, int heads, int dim,
                                               bf16* out, E4m3Target codes) {
    begin_kernel();
    __shared__ float shared[32];
    const int cols = heads * dim;
    const std::int64_t row = blockIdx.x, count = static_cast<std::int64_t>(gridDim.x) * heads;
    const Columns columns(cols);
    const int first = min(columns.first, cols - per_thread);
    float4 x[Splits][2];
#pragma unroll
    for (int s = 0; s < Splits; ++s) {
        const float* from = sums + (s * gridDim.x + row) * cols + first;
        x[s][0] = load_ahead(from), x[s][1] = load_ahead(from + 4);
    }
    __syncwarp();
    const Shares<Splits> shares(Ends<Splits>(part_ends, row * heads + first / dim, count));
    float v[8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 four = shares.merged(x, i);
        v[4 * i] = rounded<bf16>(four.x), v[4 * i + 1] = rounded<bf16>(four.y);
        v[4 * i + 2] = rounded<bf16>(four.z), v[4 * i + 3] = rounded<bf16>(four.w);
    }
    columns.store(out + row * cols, v);
    if (!columns.inside) {
#pragma unroll
        for (float& y : v) y = 0;
    }
    quantise(v, cols, columns, codes, shared);
}

}  // namespace

void merge_attention(Context& c, const float* sums, const float2* ends, std::int64_t rows, int heads, int dim,
                     int splits, void* out, const E4m3Target& codes) {
    if (c.failed() || rows == 0) return;
    auto* to = static_cast<bf16*>(out);
    const std::int64_t count = rows * heads;
    if (codes.codes == nullptr) {
        const auto merge = [&](auto kernel) {
            launch(c, "attention", kernel, static_cast<unsigned>((count + 7) / 8), 256, 0, sums, ends, count,
                   dim, to);
        };
        const bool few = splits == 2;
        if (dim <= 128) {
            merge(few ? attention_merge_kernel<2, 1> : attention_merge_kernel<most_splits, 1>);
        } else if (dim <= 256) {
            merge(few ? attention_merge_kernel<2, 2> : attention_merge_kernel<most_splits, 2>);
        } else {
            merge(few ? attention_merge_kernel<2, 4> : attention_merge_kernel<most_splits, 4>);
        }
        return;
    }
    const unsigned threads = row_threads(c, static_cast<std::int64_t>(heads) * dim);
    launch(c, "attention",
           splits == 2 ? attention_merge_in_e4m3_kernel<2> : attention_merge_in_e4m3_kernel<most_splits>,
           static_cast<unsigned>(rows), threads, 0, sums, ends, heads, dim, to, codes);
}

}  // namespace dgemma::backend::cuda
