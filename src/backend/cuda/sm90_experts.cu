// All experts of a layer, and the dense MLP beside them, in one persistent kernel on Hopper, without the host
// knowing who goes where: bf16 weights, which the matrix units read from shared memory. The list of items is
// that of sm90_items.cuh.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_items.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int stages = 5;
constexpr int box_elements = box_rows * item_depth;
// Of weights that the second-level cache is asked for before the router is done.
constexpr int early_steps = 6;

struct Problem : ItemsProblem {
    CUtensorMap gate_up, down;                     // of all experts
    CUtensorMap dense_gate, dense_up, dense_down;  // where dense_rows > 0
};

struct __align__(1024) Shared {
    bf16 weight[stages][boxes][box_elements];
    bf16 tokens[stages][most_item_tokens * item_depth];
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
    Turn<stages> turn;
    take_items(p, s.items, [&](const Item& item) {
        int count = 0;
        weight_boxes(p, item.group, item.tile, item.down, [&](int, const CUtensorMap&, int) { ++count; });
        for (int k = 0; k < item.ins; k += item_depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            barrier_expect(&s.full[turn.stage], count * box_elements * 2);
            weight_boxes(p, item.group, item.tile, item.down, [&](int box, const CUtensorMap& map, int row) {
                copy_box(s.weight[turn.stage][box], map, k, row, &s.full[turn.stage], keep_short);
            });
            turn.next();
        }
    });
}

__device__ void ask_for_weights(const Problem& p) {
    int group = 0, tile = 0;
    if (!likely_first_item(p, group, tile)) return;
    for (int step = 0; step < early_steps && step * item_depth < p.hidden; ++step) {
        weight_boxes(p, group, tile, false, [&](int, const CUtensorMap& map, int row) {
            prefetch_box(map, step * item_depth, row);
        });
    }
}

// The warpgroup's two boxes of an item times `Tokens` tokens.
template <int Tokens>
__device__ void multiply_item(const Problem& p, Shared& s, const Item& item, int warpgroup,
                              Turn<stages>& turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float low[Tokens / 2], high[Tokens / 2];
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += item_depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint64_t a = tile_descriptor(s.weight[turn.stage][2 * warpgroup]);
        const std::uint64_t b = tile_descriptor(s.tokens[turn.stage]);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < item_depth / 16; ++i) {
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
    store_item<Tokens>(p, item, warpgroup, low, high);
}

#endif

__global__ void __launch_bounds__(item_threads, 1) sm90_experts_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);  // the copier of weights and those of tokens
            barrier_init(&s.empty[i], 8);                 // a lane of every multiplying warp
        }
        init_item_slots(s.items);
        barrier_init_done();
        ask_for_weights(p);
    }
    begin_kernel();
    count_items(p, s.items);
    if (t >= 128) {
        multiply_items<stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            if (item.tokens <= 16) {
                multiply_item<16>(p, s, item, warpgroup, turn);
            } else if (item.tokens <= 32) {
                multiply_item<32>(p, s, item, warpgroup, turn);
            } else {
                multiply_item<64>(p, s, item, warpgroup, turn);
            }
        });
    } else if (t == 0) {
        copy_weights(p, s);
    } else if (t >= 64) {
        copy_tokens<stages>(p, s, t - 64);
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
    launch(c, "the experts", sm90_experts_kernel, static_cast<unsigned>(c.multiprocessors()), item_threads,
           bytes, p);
}

}  // namespace dgemma::backend::cuda
