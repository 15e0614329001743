// Attention of any element types and head sizes without matrix units: true f32 sums. One block per row and
// head; each of its four warps takes every fourth group of 32 keys, counted from position 0, so that a row's
// sums depend on its own keys alone. The path of f32 models.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int warps = 4;
constexpr int most_dim = 512;

template <class T, class C>
__global__ void __launch_bounds__(32 * warps) attention_any_kernel(AttentionPointers p) {
    begin_kernel();
    __shared__ float query[most_dim];
    __shared__ float outs[warps][most_dim];
    __shared__ float tops[warps], sums[warps];
    const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int dim = p.head_dim, kv_head = head / (p.heads / p.kv_heads);
    DeviceSegment segment = p.segments[0];
    for (int i = 0; i < p.count; ++i) {
        if (row >= p.segments[i].first_row && row < p.segments[i].first_row + p.segments[i].rows)
            segment = p.segments[i];
    }
    const T* q = static_cast<const T*>(p.q) + (static_cast<std::int64_t>(row) * p.heads + head) * dim;
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += 32 * warps) query[d] = to_float(q[d]);
    __syncthreads();

    const int begin = p.key_begin[row], end = p.key_end[row];
    const auto own = [&](int position) {
        return segment.canvas_position >= 0 && position >= segment.canvas_position;
    };
    const auto own_at = [&](int position) {
        return (static_cast<std::int64_t>(segment.first_row + position - segment.canvas_position) *
                    p.kv_heads +
                kv_head) *
               dim;
    };
    const auto page_of = [&](int position) {
        return position / static_cast<int>(page_tokens) % segment.ring_pages;
    };
    const auto cached_at = [&](int position) {
        return (static_cast<std::int64_t>(kv_head) * page_tokens + position % static_cast<int>(page_tokens)) *
               dim;
    };

    float top = -INFINITY, sum = 0, out[most_dim / 32] = {};
    for (int group = begin / 32 + (warp - begin / 32 % warps + warps) % warps; group * 32 < end;
         group += warps) {
        const int position = group * 32 + lane;
        const bool seen = position >= begin && position < end;
        float score = 0;
        if (seen && own(position)) {
            const T* key = static_cast<const T*>(p.k) + own_at(position);
            for (int d = 0; d < dim; ++d) score = fmaf(query[d], to_float(key[d]), score);
        } else if (seen) {
            const C* key = static_cast<const C*>(segment.keys[page_of(position)]) + cached_at(position);
            for (int d = 0; d < dim; ++d) score = fmaf(query[d], to_float(key[d]), score);
        }
        const float highest = fmaxf(top, warp_max(seen ? score : -INFINITY));
        const float weight = seen ? expf(score - highest) : 0.0f;
        const float keep = top == -INFINITY ? 0.0f : expf(top - highest);
        sum = sum * keep + warp_sum(weight);
        top = highest;
#pragma unroll
        for (float& o : out) o *= keep;
        const int first = max(begin, group * 32), last = min(end, group * 32 + 32);
        for (int position2 = first; position2 < last; ++position2) {
            const float w = __shfl_sync(0xFFFFFFFFu, weight, position2 - group * 32);
            const auto add = [&](const auto* value) {
#pragma unroll
                for (int i = 0; i < most_dim / 32; ++i) {
                    const int d = lane + 32 * i;
                    if (d < dim) out[i] = fmaf(w, to_float(value[d]), out[i]);
                }
            };
            if (own(position2)) {
                add(static_cast<const T*>(p.v) + own_at(position2));
            } else {
                add(static_cast<const C*>(segment.values[page_of(position2)]) + cached_at(position2));
            }
        }
    }
    if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
    for (int i = 0; i < most_dim / 32; ++i) {
        if (lane + 32 * i < dim) outs[warp][lane + 32 * i] = out[i];
    }
    __syncthreads();
    float highest = tops[0];
    for (int w = 1; w < warps; ++w) highest = fmaxf(highest, tops[w]);
    float all = 0, share[warps];
    for (int w = 0; w < warps; ++w) {
        share[w] = tops[w] == -INFINITY ? 0.0f : expf(tops[w] - highest);
        all += share[w] * sums[w];
    }
    T* to = static_cast<T*>(p.out) + (static_cast<std::int64_t>(row) * p.heads + head) * dim;
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += 32 * warps) {
        float x = 0;
        for (int w = 0; w < warps; ++w) x += share[w] * outs[w][d];
        to[d] = from_float<T>(x / all);
    }
}

}  // namespace

void attention_any(Context& c, Element type, Element cache, const AttentionPointers& p) {
    if (c.failed() || p.rows == 0) return;
    if (p.head_dim > most_dim) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes head sizes of at most 512: use the CPU for this model");
        return;
    }
    const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.heads));
    if (type == Element::bf16 && cache == Element::bf16) {
        launch(c, "attention", attention_any_kernel<bf16, bf16>, grid, 32 * warps, 0, p);
    } else if (type == Element::bf16) {
        launch(c, "attention", attention_any_kernel<bf16, float>, grid, 32 * warps, 0, p);
    } else if (cache == Element::bf16) {
        launch(c, "attention", attention_any_kernel<float, bf16>, grid, 32 * warps, 0, p);
    } else {
        launch(c, "attention", attention_any_kernel<float, float>, grid, 32 * warps, 0, p);
    }
}

}  // namespace dgemma::backend::cuda
