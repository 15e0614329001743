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
    bf16 weights[P::wide ? 2 * slab : 8];
    float top[2][64], sum[2][64];
    int begin[P::rows], end[P::rows];
    int place[P::rows];  // of the row and head among all of them, or -1
    std::uint64_t k_full[P::stages], v_full[P::stages], k_empty[P::stages], v_empty[P::stages];
};

struct Problem {
    AttentionPointers p;
    int splits;
    float* sums;    // [splits, rows, heads, Dim], where splits > 1
    float2* ends;   // [splits, rows, heads]: maximum, sum
    float* so_far;  // where blocks do all parts, [blocks, Plan::rows, Dim]
};

// What a block has to do.
struct Task {
    DeviceSegment segment;
    int group, kv_head, packed0, packed_rows, split;
    int lowest, highest;     // keys that some row here sees
    int all_begin, all_end;  // keys that all rows see
    int first_tile, end_tile;
    int part_tiles;  // of each part of the keys
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

// The position from which on keys are the call's own.
__device__ __forceinline__ int cached_end(const Task& task) {
    return task.segment.canvas_position >= 0 ? task.segment.canvas_position : task.highest;
}

// Where the pages of 32 tiles lie, a tile's in each lane of a warp. A load for each tile would wait for the
// copies that were asked for before it.
struct PagesAhead {
    __device__ __forceinline__ PagesAhead(const Task& task, const void* const* pages) : all(pages) {
        look_up(task, 0);
    }
    // Of the tile `n` of this block's, which come in order.
    [[nodiscard]] __device__ __forceinline__ const bf16* next(const Task& task, int n) {
        if (n % 32 == 0 && n > 0) look_up(task, n);
        return reinterpret_cast<const bf16*>(__shfl_sync(0xFFFFFFFFu, page, n % 32));
    }

  private:
    __device__ __forceinline__ void look_up(const Task& task, int n) {
        static_assert(page_tokens == keys_of_tile);
        const int tile = task.first_tile + n + static_cast<int>(threadIdx.x) % 32;
        const bool cached = tile < task.end_tile && tile * keys_of_tile < cached_end(task);
        page = cached ? reinterpret_cast<unsigned long long>(all[tile % task.segment.ring_pages]) : 0;
    }
    const void* const* all;
    unsigned long long page;
};

// Keys or values of a tile. Positions that nobody here sees become zeros.
template <int Dim>
__device__ void copy_tile(const bf16* to, const Problem& problem, const Task& task, const Places<Dim>& places,
                          const void* own, const bf16* page, int tile) {
    using P = Places<Dim>;
    const int first = tile * keys_of_tile, end = first + keys_of_tile;
    const DeviceSegment& segment = task.segment;
    const int cached = cached_end(task);
    const int width = problem.p.kv_heads * Dim;
    std::uint32_t base[P::repeat];
#pragma unroll
    for (int i = 0; i < P::repeat; ++i)
        base[i] = shared_address(to) + static_cast<std::uint32_t>(places.offset[i]);
    page += (static_cast<std::int64_t>(task.kv_head) * page_tokens + places.key) * Dim + places.piece * 8;
    const bf16* rows =
        static_cast<const bf16*>(own) +
        static_cast<std::int64_t>(segment.first_row + first - segment.canvas_position + places.key) * width +
        task.kv_head * Dim + places.piece * 8;
    const bool all_seen = first >= task.lowest && end <= task.highest;
    const auto to_place = [&](int i) { return base[i % P::repeat] + i / P::repeat * (8 * 128); };
    if (all_seen && end <= cached) {
#pragma unroll
        for (int i = 0; i < P::count; ++i) copy16_async(to_place(i), page + i * P::step * Dim, true);
    } else if (all_seen && first >= cached) {
#pragma unroll
        for (int i = 0; i < P::count; ++i, rows += P::step * width) copy16_async(to_place(i), rows, true);
    } else {
#pragma unroll
        for (int i = 0; i < P::count; ++i) {
            const int position = first + places.key + i * P::step;
            const bool seen = position >= task.lowest && position < task.highest;
            const bf16* from = position < cached ? page + i * P::step * Dim
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
    int keys = task.first_tile, values = task.first_tile;  // the next to be copied
    PagesAhead key_pages(task, task.segment.keys), value_pages(task, task.segment.values);
    const auto copy_keys = [&] {
        const int n = keys - task.first_tile, stage = n % P::stages;
        const bf16* page = key_pages.next(task, n);
        barrier_wait(&s.k_empty[stage], n / P::stages % 2 ^ 1);
        copy_tile<Dim>(s.k[stage][0], problem, task, places, problem.p.k, page, keys++);
        barrier_arrive_after_copies(&s.k_full[stage]);
    };
    const auto copy_values = [&] {
        const int n = values - task.first_tile, stage = n % P::stages;
        const bf16* page = value_pages.next(task, n);
        barrier_wait(&s.v_empty[stage], n / P::stages % 2 ^ 1);
        copy_tile<Dim>(s.v[stage][0], problem, task, places, problem.p.v, page, values++);
        barrier_arrive_after_copies(&s.v_full[stage]);
    };
    // A pass with a canvas writes nothing to the cache.
    for (int i = 0; i < P::stages; ++i) {
        if (keys < task.end_tile && (keys + 1) * keys_of_tile <= task.segment.canvas_position)
            copy_keys(), copy_values();
    }
    wait_for_previous_kernel();
    // Of wide heads, a tile's keys are done with before the values of the tile before.
    while (values < task.end_tile) {
        const bool ahead = P::wide && values > task.first_tile;
        if (keys < task.end_tile && keys <= values + (ahead ? 1 : 0)) {
            copy_keys();
        } else {
            copy_values();
        }
    }
    commit_copies();
    wait_copies<0>();
}

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
