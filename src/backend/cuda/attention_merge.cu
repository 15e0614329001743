// The parts of attention, which blocks made of a row's keys, brought together.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_splits = 4;
constexpr float log2e = 1.4426950408889634f;

// What each part of a row and head counts for, and the sum of all weights. ends: [splits, count].
struct Shares {
    __device__ __forceinline__ Shares(const float2* ends, std::int64_t at, std::int64_t count, int splits) {
        float top = -INFINITY;
        for (int s = 0; s < splits; ++s) top = fmaxf(top, ends[s * count + at].x);
        all = 0;
#pragma unroll
        for (int s = 0; s < most_splits; ++s) {
            const float2 end = s < splits ? ends[s * count + at] : make_float2(-INFINITY, 0);
            share[s] = end.x == -INFINITY ? 0.0f : exp2f((end.x - top) * log2e);
            all += share[s] * end.y;
        }
    }
    float share[most_splits], all;
};

// One warp per row and head.
__global__ void attention_merge_kernel(const float* sums, const float2* ends, std::int64_t count, int dim,
                                       int splits, bf16* out) {
    begin_kernel();
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (at >= count) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Shares shares(ends, at, count, splits);
    for (int d = 2 * lane; d < dim; d += 64) {
        float low = 0, high = 0;
#pragma unroll
        for (int s = 0; s < most_splits; ++s) {
            if (s >= splits || shares.share[s] == 0.0f) continue;
            const float2 x = *reinterpret_cast<const float2*>(sums + (s * count + at) * dim + d);
            low += shares.share[s] * x.x, high += shares.share[s] * x.y;
        }
        *reinterpret_cast<std::uint32_t*>(out + at * dim + d) = pack2(low / shares.all, high / shares.all);
    }
}

// One block per row, eight columns of a head a thread: the same numbers, and in E4M3.
__global__ void attention_merge_in_e4m3_kernel(const float* sums, const float2* ends, int heads, int dim,
                                               int splits, bf16* out, E4m3Target codes) {
    begin_kernel();
    __shared__ float shared[32];
    const int cols = heads * dim;
    const std::int64_t row = blockIdx.x, count = static_cast<std::int64_t>(gridDim.x) * heads;
    const Columns columns(cols);
    float v[8] = {};
    if (columns.inside) {
        const Shares shares(ends, row * heads + columns.first / dim, count, splits);
        float x[most_splits][8];
#pragma unroll
        for (int s = 0; s < most_splits; ++s) {
            if (s < splits && shares.share[s] != 0.0f)
                load8(sums + (s * gridDim.x + row) * cols + columns.first, x[s]);
        }
#pragma unroll
        for (int s = 0; s < most_splits; ++s) {
            if (s >= splits || shares.share[s] == 0.0f) continue;
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] += shares.share[s] * x[s][i];
        }
#pragma unroll
        for (float& y : v) y = rounded<bf16>(y / shares.all);
        columns.store(out + row * cols, v);
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
        launch(c, "attention", attention_merge_kernel, static_cast<unsigned>((count + 7) / 8), 256, 0, sums,
               ends, count, dim, splits, to);
        return;
    }
    const unsigned threads = row_threads(c, static_cast<std::int64_t>(heads) * dim);
    launch(c, "attention", attention_merge_in_e4m3_kernel, static_cast<unsigned>(rows), threads, 0, sums,
           ends, heads, dim, splits, to, codes);
}

}  // namespace dgemma::backend::cuda
