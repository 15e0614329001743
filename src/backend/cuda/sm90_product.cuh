// Matrix products on Hopper, of bf16 or of E4M3: the copy engine fills a ring of tiles, two warpgroups
// multiply. Rows of x are the 64-high side of the matrix instruction, outputs its other side.
//
// Large products are done by pairs of blocks, a tile above the other: each copies half of their weights to
// both, which spares the second-level cache. A small one gains less by that than clusters cost.
//
// An output's sum runs over k in ascending steps of 16 inside each part of k, and over the parts in order,
// whether parts are spread over blocks or follow each other in one: the bits do not depend on the number of
// rows.
//
// Rows of 128 codes of E4M3 are copied as rows of 64 16-bit numbers are, and stand as these do. The matrix
// unit keeps about 14 bits of their sums, which are added up outside of it after every stage: two warpgroups
// take turns at that. Scales of rows and of outputs come at the end.
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/gather_block.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_cluster.cuh"
#include "backend/cuda/sm90_wgmma_e4m3.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int tile_rows = 128;  // of x; 64 for each of the two multiplying warpgroups
constexpr int depth = 64;       // of one stage in k, in numbers of 16 bits
constexpr int threads = 384;    // one warpgroup copies, two multiply
constexpr int most_weights = 3;
constexpr int wide_columns = 256;  // of a tile of the widest products

enum class Form : std::uint8_t {
    rounded,  // out [rows, outs] in bf16
    gated,    // out [rows, outs] = rb(rb(gelu(gate)) * up): half of a tile's columns are gate, half up
    parts,    // f32 sums [parts, rows, outs]
};

struct Product {
    CUtensorMap x;
    CUtensorMap weight[most_weights];  // gated: gate and up
    void* out[most_weights];
    int outs[most_weights];
    int first_tile[most_weights + 1];  // column tiles of the weights before; gated has one list of tiles
    int rows;
    int row_tiles;          // even, where blocks work in pairs
    int steps;              // of k in all
    int part_steps;         // of one part
    int spread;             // parts that are items of their own; 1: each item runs through all parts
    const float* x_scales;  // of E4M3: [rows]
    const float* scales[most_weights];  // [outs]
    // Of wide products: rows that go to a buffer of their own, a multiple of tile_rows; 0: out[0] takes all.
    int block_rows;
    void* blocks[most_row_blocks];
};

template <int Columns, int Stages>
struct __align__(1024) Ring {
    bf16 x[Stages][tile_rows * depth];
    bf16 weight[Stages][Columns * depth];
    std::uint64_t full[Stages], empty[Stages];
};

template <int Columns>
constexpr int stages_of() {
    return Columns == 256 ? 4 : Columns == 192 ? 5 : Columns == 128 ? 6 : 8;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What an item is: its part of k, its weight, its columns and its rows.
template <Form Kind, int Columns>
struct Item {
    __device__ Item(const Product& p, int item) {
        const int tiles = p.first_tile[most_weights];
        row = item % p.row_tiles * tile_rows;
        item /= p.row_tiles;
        const int tile = item % tiles;
        which = 0;
        while (which + 1 < most_weights && tile >= p.first_tile[which + 1]) ++which;
        column = (tile - p.first_tile[which]) * (Kind == Form::gated ? Columns / 2 : Columns);
        part = item / tiles;
        first_step = p.spread > 1 ? part * p.part_steps : 0;
        end_step = p.spread > 1 ? min(p.steps, first_step + p.part_steps) : p.steps;
    }
    int row, column, which, part, first_step, end_step;
};

// The items of a block, one after another. The blocks of a pair are neighbours, and so are their items.
template <Form Kind, int Columns, class Each>
__device__ __forceinline__ void each_item(const Product& p, Each each) {
    const int items = p.row_tiles * p.first_tile[most_weights] * p.spread;
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x))
        each(Item<Kind, Columns>(p, i));
}

template <Form Kind, int Columns, bool ByRows, bool Serial, bool Clustered, bool Codes>
__device__ void multiply_rows(const Product& p, Ring<Columns, stages_of<Columns>()>& ring) {
    constexpr int stages = stages_of<Columns>();
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // of the two that multiply
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    // A pair's blocks copy to each other: both are told.
    const std::uint32_t empty = address_in(ring.empty, Clustered ? lane % 2 : 0);
    const auto release = [&](int stage) {
        if (Clustered) {
            if (lane < 2) barrier_arrive_at(empty + stage * 8);
        } else if (lane == 0) {
            barrier_arrive(&ring.empty[stage]);
        }
    };
    int stage = 0, phase = 0;
    each_item<Kind, Columns>(p, [&](const Item<Kind, Columns>& item) {
        float sums[Columns / 2];
        float total[Serial ? Columns / 2 : 1];
        if (Serial) {
#pragma unroll
            for (float& x : total) x = 0;
        }
        if (item.first_step >= item.end_step) {
#pragma unroll
            for (float& x : sums) x = 0;
        }
        int previous = -1;
        int in_part = 0;
        for (int step = item.first_step; step < item.end_step; ++step) {
            barrier_wait(&ring.full[stage], phase);
            const std::uint32_t a =
                uniform(tile_descriptor_word(shared_address(ring.x[stage] + group * 64 * depth)));
            const std::uint32_t b = uniform(
                tile_descriptor_word(shared_address(ring.weight[stage]), ByRows ? 64 * depth * 2 : 16));
            warpgroup_begin();
#pragma unroll
            for (int k = 0; k < depth / 16; ++k) {
                if constexpr (Codes) {
                    WarpgroupMultiplyE4m3<Columns>::run(sums, tile_descriptor_of(a + 2 * k),
                                                        tile_descriptor_of(b + 2 * k), k > 0);
                } else {
                    WarpgroupMultiply<Columns, ByRows>::run(sums, tile_descriptor_of(a + 2 * k),
                                                            tile_descriptor_of(b + (ByRows ? 128 : 2) * k),
                                                            in_part > 0 || k > 0);
                }
            }
            warpgroup_commit();
            if (previous >= 0) {
                warpgroup_wait<1>();
                release(previous);
            }
            previous = stage;
            if (++stage == stages) stage = 0, phase ^= 1;
            ++in_part;
            if (Serial && (Codes || in_part == p.part_steps || step + 1 == item.end_step)) {
                warpgroup_wait<0>();
                hold(sums);
                release(previous);
                previous = -1;
                in_part = 0;
#pragma unroll
                for (int c = 0; c < Columns / 2; ++c) total[c] += sums[c];
            }
        }
        warpgroup_wait<0>();
        if (previous >= 0) release(previous);
        hold(sums);
        if constexpr (Serial) {
#pragma unroll
            for (int c = 0; c < Columns / 2; ++c) sums[c] = total[c];
        }

        const int outs = p.outs[Kind == Form::gated ? 0 : item.which];
        void* out = p.out[Kind == Form::gated ? 0 : item.which];
        int rows_before = 0;  // in other buffers
        if (Kind == Form::rounded && Columns == wide_columns && p.block_rows > 0) {
            const int block = item.row / p.block_rows;
            rows_before = block * p.block_rows;
            out = p.blocks[block];
        }
        if constexpr (Codes) {
            float row_scale[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = item.row + group * 64 + warp * 16 + 8 * h + lane / 4;
                row_scale[h] = row < p.rows ? p.x_scales[row] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < Columns / 8; ++j) {
                const int column = item.column + 8 * j + lane % 4 * 2;
                float2 scale = make_float2(0, 0);
                if (column < outs) scale = *reinterpret_cast<const float2*>(p.scales[item.which] + column);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float &low = sums[4 * j + 2 * h], &high = sums[4 * j + 2 * h + 1];
                    low = low * row_scale[h] * scale.x, high = high * row_scale[h] * scale.y;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = item.row + group * 64 + warp * 16 + 8 * h + lane / 4;
            const std::int64_t at = static_cast<std::int64_t>(row - rows_before) * outs;
            constexpr int blocks = Columns / 8 / (Kind == Form::gated ? 2 : 1);
            if constexpr (Kind == Form::parts) {
                float* to =
                    static_cast<float*>(out) + static_cast<std::int64_t>(item.part) * p.rows * outs + at;
#pragma unroll
                for (int j = 0; j < blocks; ++j) {
                    const int column = item.column + 8 * j + lane % 4 * 2;
                    if (row < p.rows && column < outs)
                        *reinterpret_cast<float2*>(to + column) =
                            make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
                }
            } else {
#pragma unroll
                for (int j0 = 0; j0 < blocks; j0 += 4) {
                    std::uint32_t words[4];
#pragma unroll
                    for (int j = j0; j < j0 + 4; ++j) {
                        const float low = sums[4 * j + 2 * h], high = sums[4 * j + 2 * h + 1];
                        const int up = (4 * (j + blocks) + 2 * h) % (Columns / 2);
                        words[j - j0] = Kind == Form::gated ? gated_pair(low, high, sums[up], sums[up + 1])
                                                            : pack2(low, high);
                    }
                    const uint4 block = gather_block(words[0], words[1], words[2], words[3]);
                    const int column = item.column + 8 * (j0 + lane % 4);
                    if (row < p.rows && column < outs)
                        *reinterpret_cast<uint4*>(static_cast<bf16*>(out) + at + column) = block;
                }
            }
        }
    });
}

// Where a copying thread stands in the ring. What it does for a stage is kept short, for a thread's latencies
// are all that bounds it.
template <int Stages>
struct Turn {
    __device__ Turn(const void* full, const void* empty, const void* tiles, std::uint32_t tile_bytes)
        : full0(shared_address(full)),
          empty0(shared_address(empty)),
          tile0(shared_address(tiles)),
          bytes(tile_bytes),
          full(full0),
          tile(tile0) {}
    __device__ void wait() const { barrier_wait_at(empty0 + (full - full0), phase ^ 1); }
    __device__ void next() {
        full += 8, tile += bytes;
        if (full == full0 + 8 * Stages) full = full0, tile = tile0, phase ^= 1;
    }
    std::uint32_t full0, empty0, tile0, bytes, full, tile;
    int phase = 0;
};

// Two threads copy: one the weights, which no kernel before writes and which therefore come early, the other
// x.
template <Form Kind, int Columns, bool ByRows, bool Clustered>
__device__ void copy_weights(const Product& p, Ring<Columns, stages_of<Columns>()>& ring) {
    constexpr int share = Clustered ? Columns / 2 : Columns;
    const int skip = Clustered ? share * cluster_rank() : 0;
    Turn<stages_of<Columns>()> turn(ring.full, ring.empty, ring.weight, Columns * depth * 2);
    const auto copy = [&](const CUtensorMap* map, int offset, int column, int row) {
        copy_box_at<Clustered>(3, turn.tile + offset * depth * 2, map, column, row, turn.full);
    };
    each_item<Kind, Columns>(p, [&](const Item<Kind, Columns>& item) {
        const CUtensorMap* map = &p.weight[Kind == Form::gated || ByRows ? 0 : item.which];
        const int end = item.end_step * depth, column = item.column + skip;
#pragma unroll 1
        for (int k = item.first_step * depth; k < end; k += depth) {
            turn.wait();
            barrier_expect_at(turn.full, (tile_rows + Columns) * depth * 2);
            if constexpr (ByRows) {
#pragma unroll
                for (int n = 0; n < share; n += 64) copy(map, skip + n, column + n, k);
            } else if constexpr (Kind == Form::gated) {
                copy(map, 0, k, column);
                copy(map + 1, Columns / 2, k, column);
            } else {
                copy(map, skip, k, column);
            }
            turn.next();
        }
    });
}

template <Form Kind, int Columns>
__device__ void copy_rows(const Product& p, Ring<Columns, stages_of<Columns>()>& ring) {
    Turn<stages_of<Columns>()> turn(ring.full, ring.empty, ring.x, tile_rows * depth * 2);
    each_item<Kind, Columns>(p, [&](const Item<Kind, Columns>& item) {
        const int end = item.end_step * depth;
#pragma unroll 1
        for (int k = item.first_step * depth; k < end; k += depth) {
            turn.wait();
            copy_box_at<false>(0, turn.tile, &p.x, k, item.row, turn.full);
            turn.next();
        }
    });
}

#endif

template <Form Kind, int Columns, bool ByRows, bool Serial, bool Clustered, bool Codes = false>
__global__ void __launch_bounds__(threads, 1) sm90_multiply_kernel(const __grid_constant__ Product p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    std::uint8_t* shared = launched_shared_memory();
    using Tiles = Ring<Columns, stages_of<Columns>()>;
    Tiles& ring = *reinterpret_cast<Tiles*>(shared + padding_to_1024(shared));
    allow_next_kernel();
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages_of<Columns>(); ++s) {
            barrier_init(&ring.full[s], 1);
            // A lane of every multiplying warp of every block that this one copies to.
            barrier_init(&ring.empty[s], Clustered ? 16 : 8);
        }
        barrier_init_done();
    }
    __syncthreads();
    // Nobody copies to a block whose barriers are not made, and none leaves while others copy to it.
    if (Clustered) {
        cluster_arrive();
        cluster_wait();
    }
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) copy_weights<Kind, Columns, ByRows, Clustered>(p, ring);
        if (threadIdx.x == 32) {
            wait_for_previous_kernel();
            copy_rows<Kind, Columns>(p, ring);
        }
    } else {
        take_registers<232>();
        wait_for_previous_kernel();
        static_assert(!Codes || (Kind == Form::rounded && Serial && !ByRows && !Clustered));
        multiply_rows<Kind, Columns, ByRows, Serial, Clustered, Codes>(p, ring);
    }
    if (Clustered) {
        cluster_arrive();
        cluster_wait();
    }
#endif
}

}  // namespace

}  // namespace dgemma::backend::cuda
