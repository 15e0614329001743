// What a block of Hopper's attention is, and the copying of its keys and values.
#pragma once

#include <climits>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int keys_of_tile = 64;
constexpr int threads = 384;
constexpr int copiers = 128;
constexpr float log2e = 1.4426950408889634f;
constexpr int slab = keys_of_tile * 64;  // elements of 64 keys by 64 columns

template <int Dim>
struct Plan {
    static constexpr bool wide = Dim == 512;
    static constexpr int rows = wide ? 64 : 128;
    static constexpr int slabs = Dim / 64;
    static constexpr int stages = wide ? 1 : 2;
    static constexpr int splits = wide ? 2 : 4;
};

template <int Dim>
struct __align__(1024) Shared {
    using P = Plan<Dim>;
    bf16 q[P::slabs][P::rows * 64];
    bf16 k[P::stages][P::slabs][slab];
    bf16 v[P::stages][P::slabs][slab];
    bf16 weights[P::wide ? slab : 8];
    float top[2][64], sum[2][64];
    int begin[P::rows], end[P::rows];
    std::uint64_t k_full[P::stages], v_full[P::stages], k_empty[P::stages], v_empty[P::stages];
};

struct Problem {
    AttentionPointers p;
    int splits;
    float* sums;   // [splits, rows, heads, Dim], where splits > 1
    float2* ends;  // [splits, rows, heads]: maximum, sum
};

// What a block has to do.
struct Task {
    DeviceSegment segment;
    int group, kv_head, packed0, packed_rows, split;
    int lowest, highest;     // keys that some row here sees
    int all_begin, all_end;  // keys that all rows see
    int first_tile, end_tile;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where a 16-byte piece of a row of 64 columns lies in a slab of 128-byte rows, in elements.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * 64 + ((piece ^ (row & 7)) * 8); }

// The places of a copying thread in a tile: every `step`-th key from `key` on, the same 16 bytes of each.
template <int Dim>
struct Places {
    static constexpr int in_row = Dim / 8;         // pieces of 16 bytes
    static constexpr int step = copiers / in_row;  // keys from one copy to the next: 4 or 2
    static constexpr int count = keys_of_tile / step;
    static constexpr int repeat = 8 / step;  // copies after which the swizzle is the same

    explicit __device__ Places(int thread) : key(thread / in_row), piece(thread % in_row) {
#pragma unroll
        for (int i = 0; i < repeat; ++i)
            offset[i] = (piece / 8 * slab + swizzled(key + step * i, piece % 8)) * 2;
    }
    int key, piece;
    int offset[repeat];  // in bytes, of the first copies in a tile's slabs
};

// Keys or values of a tile. Positions that nobody here sees become zeros.
template <int Dim>
__device__ void copy_tile(const bf16* to, const Problem& problem, const Task& task, const Places<Dim>& places,
                          const void* own, const void* const* pages, int tile) {
    using P = Places<Dim>;
    const int first = tile * keys_of_tile, end = first + keys_of_tile;
    const DeviceSegment& segment = task.segment;
    const int cached_end = segment.canvas_position >= 0 ? segment.canvas_position : task.highest;
    const int width = problem.p.kv_heads * Dim;
    std::uint32_t base[P::repeat];
#pragma unroll
    for (int i = 0; i < P::repeat; ++i)
        base[i] = shared_address(to) + static_cast<std::uint32_t>(places.offset[i]);
    const bf16* page = nullptr;
    if (first < cached_end) {
        page = static_cast<const bf16*>(pages[first / static_cast<int>(page_tokens) % segment.ring_pages]) +
               (static_cast<std::int64_t>(task.kv_head) * page_tokens + places.key) * Dim + places.piece * 8;
    }
    const bf16* rows =
        static_cast<const bf16*>(own) +
        static_cast<std::int64_t>(segment.first_row + first - segment.canvas_position + places.key) * width +
        task.kv_head * Dim + places.piece * 8;
    const bool all_seen = first >= task.lowest && end <= task.highest;
    const auto to_place = [&](int i) { return base[i % P::repeat] + i / P::repeat * (8 * 128); };
    if (all_seen && end <= cached_end) {
#pragma unroll
        for (int i = 0; i < P::count; ++i) copy16_async(to_place(i), page + i * P::step * Dim, true);
    } else if (all_seen && first >= cached_end) {
#pragma unroll
        for (int i = 0; i < P::count; ++i, rows += P::step * width) copy16_async(to_place(i), rows, true);
    } else {
#pragma unroll
        for (int i = 0; i < P::count; ++i) {
            const int position = first + places.key + i * P::step;
            const bool seen = position >= task.lowest && position < task.highest;
            const bf16* from = position < cached_end ? page + i * P::step * Dim
                                                     : rows + static_cast<std::int64_t>(i * P::step) * width;
            copy16_async(to_place(i), seen ? from : static_cast<const bf16*>(problem.p.q), seen);
        }
    }
}

// The copying warpgroup: keys and values in turn, as far ahead as there is room, and the first of them, where
// they are cached, before the kernel before is over. Who waits for a barrier has to put a fence between these
// copies and the matrix units.
template <int Dim>
__device__ void copy_all(const Problem& problem, const Task& task, Shared<Dim>& s) {
    using P = Plan<Dim>;
    const Places<Dim> places(static_cast<int>(threadIdx.x));
    int stage = 0, phase = 0, tile = task.first_tile;
    const auto copy_both = [&] {
        barrier_wait(&s.k_empty[stage], phase ^ 1);
        copy_tile<Dim>(s.k[stage][0], problem, task, places, problem.p.k, task.segment.keys, tile);
        barrier_arrive_after_copies(&s.k_full[stage]);
        barrier_wait(&s.v_empty[stage], phase ^ 1);
        copy_tile<Dim>(s.v[stage][0], problem, task, places, problem.p.v, task.segment.values, tile);
        barrier_arrive_after_copies(&s.v_full[stage]);
        if (++stage == P::stages) stage = 0, phase ^= 1;
        ++tile;
    };
    // A pass with a canvas writes nothing to the cache.
    for (int i = 0; i < P::stages; ++i) {
        if (tile < task.end_tile && (tile + 1) * keys_of_tile <= task.segment.canvas_position) copy_both();
    }
    wait_for_previous_kernel();
    while (tile < task.end_tile) copy_both();
    commit_copies();
    wait_copies<0>();
}

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
