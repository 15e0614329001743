// The rows of a block in Hopper's attention: how their queries come, and where their sums go.
#pragma once

#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/gather_block.cuh"
#include "backend/cuda/sm90_attention.cuh"

namespace dgemma::backend::cuda {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Half `H` of a thread's sums: what it has of a row, whose columns begin at column0. `place`: of the row and
// head among all, or -1: nobody's.
template <int Dim, int H>
__device__ __forceinline__ void write_row(const Problem& problem, const Task& task, int place, int column0,
                                          float top, float sum, const float (&out)[128]) {
    const AttentionPointers& p = problem.p;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    if (problem.sums != nullptr) {
        if (place < 0) return;
        const std::int64_t part = task.split * p.rows * p.heads + place;
        if (column0 + lane == 0) problem.ends[part] = make_float2(top, sum);
        float* to = problem.sums + part * Dim + column0 + 4 * lane;  // as merge_attention takes them
#pragma unroll
        for (int j = 0; j < 32; j += 2) {
            *reinterpret_cast<float4*>(to + 8 * j) =
                make_float4(out[4 * j + 2 * H], out[4 * j + 2 * H + 1], out[4 * j + 4 + 2 * H],
                            out[4 * j + 4 + 2 * H + 1]);
        }
    } else {
        const float share = 1.0f / sum;
        bf16* to = static_cast<bf16*>(p.out) + static_cast<std::int64_t>(place) * Dim + column0 + lane * 8;
#pragma unroll
        for (int j0 = 0; j0 < 32; j0 += 4) {
            std::uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int i = 4 * (j0 + j) + 2 * H;
                words[j] = pack2(out[i] * share, out[i + 1] * share);
            }
            const uint4 block = gather_block(words[0], words[1], words[2], words[3]);
            if (place >= 0) *reinterpret_cast<uint4*>(to + 8 * j0) = block;
        }
    }
}

// The multiplying warpgroups fetch their queries themselves: 64 rows for each, or, of wide heads, for both.
template <int Dim>
__device__ void copy_queries(const Problem& problem, Shared<Dim>& s) {
    constexpr bool wide = Plan<Dim>::wide;
    constexpr int together = wide ? 256 : 128, in_row = Dim / 8, step = together / in_row;
    const int t = static_cast<int>(threadIdx.x) - copiers, warpgroup = t / 128;
    const int piece = t % together % in_row, row0 = (wide ? 0 : 64 * warpgroup) + t % together / in_row;
    constexpr int repeat = 8 / step;  // copies after which the swizzle is the same
    std::uint32_t to[repeat];
#pragma unroll
    for (int i = 0; i < repeat; ++i)
        to[i] = shared_address(s.q[piece / 8] + swizzled(row0 + i * step, piece % 8));
    int place[64 / step];
#pragma unroll
    for (int i = 0; i < 64 / step; ++i) place[i] = s.place[row0 + i * step];
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < 64 / step; ++i) {
        const bf16* from = static_cast<const bf16*>(problem.p.q) +
                           static_cast<std::int64_t>(max(place[i], 0)) * Dim + piece * 8;
        copy16_async(to[i % repeat] + i / repeat * (8 * 128), from, place[i] >= 0);
    }
    commit_copies();
    wait_copies<0>();
    fence_copy_engine();
    asm volatile("bar.sync %0, %1;\n" ::"r"(3 + (wide ? 0 : warpgroup)), "n"(together) : "memory");
}

// `out`, the sums of a part of the keys, is added to those of the parts before: in memory, for the next one,
// which begins with zeros, or, of the last part, where it is. parts: of the thread's two rows, with this one
// in it. first: there are no parts before.
template <bool Last>
__device__ __forceinline__ void add_part(float4* so_far, bool first, const PartsOfRow (&parts)[2],
                                         float (&out)[128]) {
    constexpr int multipliers = threads - copiers, ahead = 8;
#pragma unroll
    for (int j0 = 0; j0 < 32; j0 += ahead) {
        // Fetched before the first is written, over which the compiler moves no load.
        float4 before[ahead];
#pragma unroll
        for (int j = 0; j < ahead; ++j)
            before[j] = first ? make_float4(0, 0, 0, 0) : __ldcg(so_far + (j0 + j) * multipliers);
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
            float* x = out + 4 * (j0 + j);
            const float4 sum =
                make_float4(parts[0].with(before[j].x, x[0]), parts[0].with(before[j].y, x[1]),
                            parts[1].with(before[j].z, x[2]), parts[1].with(before[j].w, x[3]));
            if (Last) {
                x[0] = sum.x, x[1] = sum.y, x[2] = sum.z, x[3] = sum.w;
            } else {
                __stcg(so_far + (j0 + j) * multipliers, sum);
                x[0] = x[1] = x[2] = x[3] = 0;
            }
        }
    }
}

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
