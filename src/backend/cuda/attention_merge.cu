// The parts of attention, which blocks made of a row's keys, brought together.
#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_splits = 4;

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

// What each part counts for.
template <int Splits>
struct Shares {
    explicit __device__ __forceinline__ Shares(const Ends<Splits>& ends) {
        PartsOfRow so_far;
#pragma unroll
        for (int s = 0; s < Splits; ++s) {
            so_far.add(ends.end[s].x, ends.end[s].y);
            with[s] = so_far;
        }
        whole = 1.0f / so_far.sum;
    }
    // Four columns of all parts.
    template <int Fours>
    [[nodiscard]] __device__ __forceinline__ float4 merged(const float4 (&x)[Splits][Fours], int i) const {
        float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int s = 0; s < Splits; ++s) {
            const float4 part = x[s][i];
            all.x = with[s].with(all.x, part.x), all.y = with[s].with(all.y, part.y);
            all.z = with[s].with(all.z, part.z), all.w = with[s].with(all.w, part.w);
        }
        return make_float4(all.x * whole, all.y * whole, all.z * whole, all.w * whole);
    }
    PartsOfRow with[Splits];
    float whole;
};

// One warp per row and head, of which a lane has four columns of each 128. Fragments: they lie as
// kernels.h says.
template <int Splits, int Fours, bool Fragments>
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
        uint2 bits = make_uint2(pack2(four.x, four.y), pack2(four.z, four.w));
        int column = first + 128 * i;
        if (Fragments) {
            // A lane and its neighbour exchange two columns: four in a row for each.
            const bool odd = threadIdx.x % 2 != 0;
            const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? bits.x : bits.y, 1);
            bits = odd ? make_uint2(got, bits.y) : make_uint2(bits.x, got);
            column = column / 16 * 16 + (odd ? 8 : 0) + column / 8 % 2 * 4;
        }
        if (column < dim) *reinterpret_cast<uint2*>(out + at * dim + column) = bits;
    }
}

// One block per row, eight columns of a head a thread: the same numbers, and in E4M3.
template <int Splits, bool Fragments>
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
    const float4 low = shares.merged(x, 0), high = shares.merged(x, 1);
    float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (Fragments) {
        // Of 16 columns in a row this thread has four of the first eight and four of the others, and its
        // neighbour the rest.
        const bool odd = threadIdx.x % 2 != 0;
        const float first_half[4] = {v[0], v[1], v[4], v[5]}, second_half[4] = {v[2], v[3], v[6], v[7]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float got = __shfl_xor_sync(0xFFFFFFFFu, odd ? first_half[i] : second_half[i], 1);
            v[i] = odd ? got : first_half[i];
            v[4 + i] = odd ? second_half[i] : got;
        }
    }
#pragma unroll
    for (float& y : v) y = rounded<bf16>(y);
    columns.store(out + row * cols, v);
    if (!columns.inside) {
#pragma unroll
        for (float& y : v) y = 0;
    }
    quantise(v, cols, columns, codes, shared);
}

// Launches the kernel for a number of parts that a kernel of attention makes.
template <int Splits, bool Fragments>
void merge(Context& c, const float* sums, const float2* ends, std::int64_t rows, int heads, int dim,
           void* out, const E4m3Target& codes) {
    if (c.failed() || rows == 0) return;
    auto* to = static_cast<bf16*>(out);
    const std::int64_t count = rows * heads;
    if (codes.codes == nullptr) {
        auto* kernel = dim <= 128   ? attention_merge_kernel<Splits, 1, Fragments>
                       : dim <= 256 ? attention_merge_kernel<Splits, 2, Fragments>
                                    : attention_merge_kernel<Splits, 4, Fragments>;
        launch(c, "attention", kernel, static_cast<unsigned>((count + 7) / 8), 256, 0, sums, ends, count, dim,
               to);
        return;
    }
    const unsigned threads = row_threads(c, static_cast<std::int64_t>(heads) * dim);
    launch(c, "attention", attention_merge_in_e4m3_kernel<Splits, Fragments>, static_cast<unsigned>(rows),
           threads, 0, sums, ends, heads, dim, to, codes);
}

}  // namespace

void merge_attention(Context& c, const float* sums, const float2* ends, std::int64_t rows, int heads, int dim,
                     int splits, PartColumns columns, void* out, const E4m3Target& codes) {
    const bool fragments = columns == PartColumns::fragments;
    const auto run = splits == 2 ? (fragments ? merge<2, true> : merge<2, false>)
                                 : (fragments ? merge<most_splits, true> : merge<most_splits, false>);
    run(c, sums, ends, rows, heads, dim, out, codes);
}

}  // namespace dgemma::backend::cuda
