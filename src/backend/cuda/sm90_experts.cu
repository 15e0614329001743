// All experts of a layer, and the dense MLP beside them, in one persistent kernel on Hopper, without the host
// knowing who goes where.
//
// Weights are the 64-high side of the matrix instruction and tokens its other side, 16 to 64 of them by need:
// at one canvas an expert has about 16. The dense MLP is one more expert whom every row visits. Every block
// walks the same list of items: first, expert after expert, tiles of 128 gate and 128 up rows, whose gated
// product goes to memory; then tiles of 256 rows of the down projection. A block copies the weights of its
// next items while it still multiplies; only the tokens of a down tile wait until all of its expert's hidden
// layer is written. An item earlier in the list never waits for a later one, so the list always ends.
#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int depth = 64;        // of one stage in k
constexpr int box_rows = 64;     // of weights
constexpr int boxes = 4;         // of one stage: gate, up, gate, up; or four of down; two for each warpgroup
constexpr int most_tokens = 64;  // of one item
constexpr int stages = 5;
constexpr int threads = 384;       // one warpgroup copies, two multiply
constexpr int token_copiers = 64;  // threads of it
constexpr int most_groups = 1025;  // the dense MLP and the experts
constexpr int box_elements = box_rows * depth;
constexpr int early_steps =
    6;  // of weights that the second-level cache is asked for before the router is done

struct Problem {
    CUtensorMap gate_up, down;                     // of all experts
    CUtensorMap dense_gate, dense_up, dense_down;  // where dense_rows > 0
    const bf16 *x, *dense_x;                       // [rows, hidden]
    const std::int32_t* row_at;                    // [pairs]: the row of a place
    const std::int32_t* offsets;                   // [experts + 1]: the places of an expert
    std::int32_t* ready;                           // [1 + experts]
    bf16 *act, *dense_act;                         // [pairs, width], [rows, dense_width]
    bf16 *y, *dense_y;                             // [pairs, hidden], [rows, hidden]
    int experts, hidden, width, dense_rows, dense_width;
};

struct __align__(1024) Shared {
    bf16 weight[stages][boxes][box_elements];
    bf16 tokens[stages][most_tokens * depth];
    std::uint64_t full[stages], empty[stages];
    int offsets[most_groups + 1];     // places of a group: the dense MLP's rows, then the experts'
    int gate_items[most_groups + 1];  // items of the groups before
    int down_items[most_groups + 1];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ int over(int count, int tile) { return (count + tile - 1) / tile; }

// What a block works on at a time. Group 0 is the dense MLP, group 1 + e expert e.
struct Item {
    int group, tile, first, tokens;  // first: place within the group's rows of x, act and y
    bool down;
    int ins;
};

__device__ __forceinline__ int width_of(const Problem& p, int group) {
    return group == 0 ? p.dense_width : p.width;
}
__device__ __forceinline__ int tokens_of(const Problem& p, const Shared& s, int group) {
    return group == 0 ? p.dense_rows : s.offsets[group + 1] - s.offsets[group];
}

// A walk over the items of this block in order.
template <class Each>
__device__ void walk(const Problem& p, const Shared& s, Each each) {
    const int groups = 1 + p.experts;
    const int gate_items = s.gate_items[groups], items = gate_items + s.down_items[groups];
    Item item{0, 0, 0, 0, false, p.hidden};
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
        if (!item.down && i >= gate_items) item.down = true, item.group = 0;
        const int* before = item.down ? s.down_items : s.gate_items;
        const int at = item.down ? i - gate_items : i;
        while (at >= before[item.group + 1]) ++item.group;
        const int rows = tokens_of(p, s, item.group), blocks = over(rows, most_tokens);
        const int inside = at - before[item.group];
        const int skip = inside % blocks * most_tokens;
        item.tile = inside / blocks;
        item.first = (item.group == 0 ? 0 : s.offsets[item.group]) + skip;
        item.tokens = min(most_tokens, rows - skip);
        item.ins = item.down ? width_of(p, item.group) : p.hidden;
        each(item);
    }
}

// The place in the ring of one of those who go round it.
struct Turn {
    int stage = 0, phase = 0;
    __device__ void next() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

// The boxes of weights of an item at column k: bring(which of the stage's, map, row).
template <class Bring>
__device__ __forceinline__ void weight_boxes(const Problem& p, int group, int tile, bool down, Bring bring) {
    const int expert = group - 1;
    if (down) {
        const CUtensorMap& map = group == 0 ? p.dense_down : p.down;
        for (int b = 0; b < boxes; ++b) {
            const int row = tile * boxes * box_rows + b * box_rows;
            if (row < p.hidden) bring(b, map, (group == 0 ? 0 : expert * p.hidden) + row);
        }
        return;
    }
    for (int half = 0; half < 2; ++half) {
        const int row = (2 * tile + half) * box_rows;
        if (row >= width_of(p, group)) break;
        if (group == 0) {
            bring(2 * half, p.dense_gate, row);
            bring(2 * half + 1, p.dense_up, row);
        } else {
            bring(2 * half, p.gate_up, expert * 2 * p.width + row);
            bring(2 * half + 1, p.gate_up, expert * 2 * p.width + p.width + row);
        }
    }
}

__device__ void copy_weights(const Problem& p, Shared& s) {
    Turn turn;
    walk(p, s, [&](const Item& item) {
        int count = 0;
        weight_boxes(p, item.group, item.tile, item.down, [&](int, const CUtensorMap&, int) { ++count; });
        for (int k = 0; k < item.ins; k += depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            barrier_expect(&s.full[turn.stage], count * box_elements * 2);
            weight_boxes(p, item.group, item.tile, item.down, [&](int box, const CUtensorMap& map, int row) {
                copy_box(s.weight[turn.stage][box], map, k, row, &s.full[turn.stage], keep_short);
            });
            turn.next();
        }
    });
}

// Before the router is done: the first weights of this block are known, or nearly so, if every expert has
// some rows.
__device__ void ask_for_weights(const Problem& p) {
    int item = static_cast<int>(blockIdx.x), group = 0, tile = 0;
    const int dense_items = over(p.dense_rows, most_tokens) * over(p.dense_width, 2 * box_rows);
    if (item < dense_items) {
        tile = item / over(p.dense_rows, most_tokens);
    } else {
        const int tiles = over(p.width, 2 * box_rows);
        group = 1 + (item - dense_items) / tiles;
        tile = (item - dense_items) % tiles;
        if (group > p.experts) return;
    }
    for (int step = 0; step < early_steps && step * depth < p.hidden; ++step) {
        weight_boxes(p, group, tile, false,
                     [&](int, const CUtensorMap& map, int row) { prefetch_box(map, step * depth, row); });
    }
}

__device__ void copy_tokens(const Problem& p, Shared& s, int t) {
    Turn turn;
    const int piece = t % 8, row0 = t / 8;  // 16 bytes of every eighth token
    const int offset = row0 * 128 + (piece ^ row0) * 16;
    walk(p, s, [&](const Item& item) {
        if (item.down) {
            const int written =
                over(tokens_of(p, s, item.group), most_tokens) * over(width_of(p, item.group), box_rows);
            int seen = 0;
            do {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n"
                             : "=r"(seen)
                             : "l"(p.ready + item.group)
                             : "memory");
            } while (seen < written);
        }
        const bf16* base =
            item.group == 0 ? (item.down ? p.dense_act : p.dense_x) : (item.down ? p.act : p.x);
        const bf16* from[most_tokens / 8];
#pragma unroll
        for (int i = 0; i < most_tokens / 8; ++i) {
            const int token = row0 + 8 * i;
            int row = item.first + token;
            if (!item.down && item.group > 0 && token < item.tokens) row = p.row_at[row];
            from[i] = base + static_cast<std::int64_t>(row) * item.ins + piece * 8;
        }
        for (int k = 0; k < item.ins; k += depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            const std::uint32_t to =
                shared_address(s.tokens[turn.stage]) + static_cast<std::uint32_t>(offset);
            const bool inside = k + piece * 8 < item.ins;
#pragma unroll
            for (int i = 0; i < most_tokens / 8; ++i) {
                if (row0 + 8 * i < item.tokens)
                    copy16_async(to + i * 1024, inside ? from[i] + k : base, inside);
            }
            barrier_arrive_after_copies(&s.full[turn.stage]);
            turn.next();
        }
    });
    commit_copies();
    wait_copies<0>();
}

// A warpgroup with no part in an item lets it go by.
__device__ void skip_item(Shared& s, const Item& item, Turn& turn) {
    for (int k = 0; k < item.ins; k += depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[turn.stage]);
        turn.next();
    }
}

// The warpgroup's two boxes of an item times `Tokens` tokens, and what becomes of the sums.
template <int Tokens>
__device__ void multiply_item(const Problem& p, Shared& s, const Item& item, int warpgroup, Turn& turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    float low[Tokens / 2], high[Tokens / 2];
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint64_t a = tile_descriptor(s.weight[turn.stage][2 * warpgroup]);
        const std::uint64_t b = tile_descriptor(s.tokens[turn.stage]);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < depth / 16; ++i) {
            WarpgroupMultiply<Tokens, false>::run(low, a + 2 * i, b + 2 * i, k > 0 || i > 0);
            WarpgroupMultiply<Tokens, false>::run(high, a + box_elements * 2 / 16 + 2 * i, b + 2 * i,
                                                  k > 0 || i > 0);
        }
        warpgroup_commit();
        if (previous >= 0) {
            warpgroup_wait<1>();
            if (lane == 0) barrier_arrive(&s.empty[previous]);
        }
        previous = turn.stage;
        turn.next();
    }
    warpgroup_wait<0>();
    if (lane == 0) barrier_arrive(&s.empty[previous]);
    hold(low);
    hold(high);

    // A thread holds weight rows lane / 4 (+ 8) of its warp's 16 for tokens 8 j + lane % 4 * 2 (+ 1);
    // transposed, token 8 j + lane / 4 for rows lane % 4 * 2 (+ 1).
    const int outs = item.down ? p.hidden : width_of(p, item.group);
    bf16* out = item.group == 0 ? (item.down ? p.dense_y : p.dense_act) : (item.down ? p.y : p.act);
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        const int token = 8 * j + lane / 4;
        bf16* to = out + static_cast<std::int64_t>(item.first + token) * outs;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = 4 * j + 2 * h;
            const int row = warp * 16 + 8 * h + lane % 4 * 2;
            if (item.down) {
                const std::uint32_t a = transpose8(pack2(low[i], low[i + 1]));
                const std::uint32_t b = transpose8(pack2(high[i], high[i + 1]));
                const int column = (item.tile * 2 + warpgroup) * 2 * box_rows + row;
                if (token < item.tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
                if (token < item.tokens && column + box_rows < outs)
                    *reinterpret_cast<std::uint32_t*>(to + column + box_rows) = b;
            } else {
                float gated[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const float gate = rounded<bf16>(gelu(rounded<bf16>(low[i + c])));
                    gated[c] = gate * rounded<bf16>(high[i + c]);
                }
                const std::uint32_t a = transpose8(pack2(gated[0], gated[1]));
                const int column = (item.tile * 2 + warpgroup) * box_rows + row;
                if (token < item.tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
            }
        }
    }
}

__device__ void multiply(const Problem& p, Shared& s) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    Turn turn;
    walk(p, s, [&](const Item& item) {
        const int first_row = (item.tile * 2 + warpgroup) * box_rows * (item.down ? 2 : 1);
        if (first_row >= (item.down ? p.hidden : width_of(p, item.group))) {
            skip_item(s, item, turn);
            return;
        }
        if (item.tokens <= 16) {
            multiply_item<16>(p, s, item, warpgroup, turn);
        } else if (item.tokens <= 32) {
            multiply_item<32>(p, s, item, warpgroup, turn);
        } else {
            multiply_item<64>(p, s, item, warpgroup, turn);
        }
        if (!item.down) {
            // Other blocks read what was written here.
            __threadfence();
            asm volatile("bar.sync %0, 128;\n" ::"r"(1 + warpgroup) : "memory");
            if (threadIdx.x % 128 == 0)
                asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(p.ready + item.group)
                             : "memory");
        }
    });
}

// By the first warp: how many items there are before each group.
__device__ void count_items(const Problem& p, Shared& s) {
    const int groups = 1 + p.experts, lane = static_cast<int>(threadIdx.x);
    const int gate_tiles = over(p.width, 2 * box_rows), down_tiles = over(p.hidden, boxes * box_rows);
    int gates = 0, downs = 0;
    for (int g0 = 0; g0 < groups; g0 += 32) {
        const int group = g0 + lane;
        const int blocks = group < groups ? over(tokens_of(p, s, group), most_tokens) : 0;
        const int own_gates = blocks * (group == 0 ? over(p.dense_width, 2 * box_rows) : gate_tiles);
        const int own_downs = blocks * down_tiles;
        int gate = own_gates, down = own_downs;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int gate_left = __shfl_up_sync(0xFFFFFFFFu, gate, step);
            const int down_left = __shfl_up_sync(0xFFFFFFFFu, down, step);
            if (lane >= step) gate += gate_left, down += down_left;
        }
        if (group < groups) {
            s.gate_items[group] = gates + gate - own_gates;
            s.down_items[group] = downs + down - own_downs;
        }
        gates += __shfl_sync(0xFFFFFFFFu, gate, 31);
        downs += __shfl_sync(0xFFFFFFFFu, down, 31);
    }
    if (lane == 0) s.gate_items[groups] = gates, s.down_items[groups] = downs;
}

#endif

__global__ void __launch_bounds__(threads, 1) sm90_experts_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    Shared& s = *reinterpret_cast<Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);  // the copier of weights and those of tokens
            barrier_init(&s.empty[i], 8);                 // a lane of every multiplying warp
        }
        barrier_init_done();
        ask_for_weights(p);
    }
    begin_kernel();
    // The dense MLP's rows are no places of the sort; its two bounds are not used.
    for (int e = t; e <= p.experts; e += threads) s.offsets[1 + e] = p.offsets[e];
    __syncthreads();
    if (t < 32) count_items(p, s);
    __syncthreads();
    if (t >= 128) {
        multiply(p, s);
    } else if (t == 0) {
        copy_weights(p, s);
    } else if (t >= 64) {
        copy_tokens(p, s, t - 64);
    }
#endif
}

}  // namespace

bool sm90_experts_fit(std::int64_t experts, std::int64_t hidden, std::int64_t width) {
    return experts < most_groups && hidden % 8 == 0 && width % 8 == 0;
}

void sm90_experts(Context& c, const void* x, const DeviceMatrix& gate_up, const DeviceMatrix& down,
                  const Places& places, void* act, void* y, const DenseBeside& dense) {
    if (c.failed()) return;
    Problem p{};
    p.experts = static_cast<int>(gate_up.groups);
    p.hidden = static_cast<int>(gate_up.ins);
    p.width = static_cast<int>(down.ins);
    p.gate_up = tensor_map(c, gate_up.data, gate_up.groups * gate_up.outs, gate_up.ins, box_rows);
    p.down = tensor_map(c, down.data, down.groups * down.outs, down.ins, box_rows);
    p.x = static_cast<const bf16*>(x);
    p.row_at = places.row_at;
    p.offsets = places.offsets;
    p.ready = places.ready;
    p.act = static_cast<bf16*>(act);
    p.y = static_cast<bf16*>(y);
    if (dense.rows > 0) {
        p.dense_gate = tensor_map(c, dense.gate.data, dense.gate.outs, dense.gate.ins, box_rows);
        p.dense_up = tensor_map(c, dense.up.data, dense.up.outs, dense.up.ins, box_rows);
        p.dense_down = tensor_map(c, dense.down.data, dense.down.outs, dense.down.ins, box_rows);
        p.dense_x = static_cast<const bf16*>(dense.x);
        p.dense_act = static_cast<bf16*>(dense.act);
        p.dense_y = static_cast<bf16*>(dense.y);
        p.dense_rows = static_cast<int>(dense.rows);
        p.dense_width = static_cast<int>(dense.gate.outs);
    }
    constexpr int bytes = static_cast<int>(sizeof(Shared)) + 1024;
    c.check(cudaFuncSetAttribute(sm90_experts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "the experts");
    launch(c, "the experts", sm90_experts_kernel, static_cast<unsigned>(c.multiprocessors()), threads, bytes,
           p);
}

}  // namespace dgemma::backend::cuda
