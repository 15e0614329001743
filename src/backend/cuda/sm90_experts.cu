// All experts of a layer, and the dense MLP beside them, in one persistent kernel on Hopper, without the host
// knowing who goes where: bf16 weights, which the matrix units read from shared memory. The list of items is
// that of sm90_items.cuh.
#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_boxes.cuh"
#include "backend/cuda/sm90_item_tokens.cuh"

namespace dgemma::backend::cuda {

namespace {

// Few rows an expert, so that what comes from memory is all that counts; or many, so that a box of weights is
// brought from the second-level cache for as many as the registers of a block hold, or of two.
using FewRows = ItemForm<2, 64, item_depth, 16, true>;
using ManyRows = ItemForm<2, 160, item_depth, 16, true>;
using PairedRows = ItemForm<2, 160, item_depth, 16, true, 2>;
constexpr int copier_registers = 56, multiplier_registers = 224;  // of many rows
template <class Form>
constexpr int stages_of = Form::most_tokens <= 64 ? 5 : 4;
constexpr int box_elements = box_rows * item_depth;
constexpr int many_rows = 64, paired_rows = 192;  // of an expert on average, from which on

template <class Form>
struct __align__(1024) Ring {
    static constexpr int stages = stages_of<Form>;
    bf16 weight[stages][Form::boxes][box_elements];
    bf16 tokens[stages][Form::most_tokens * item_depth];
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warpgroup's two boxes of an item times `Tokens` tokens.
template <int Tokens, class Form>
__device__ void multiply_item(const BoxesProblem& p, Ring<Form>& s, const Item& item, int warpgroup,
                              Turn<Ring<Form>::stages>& turn) {
    float low[Tokens / 2], high[Tokens / 2];
    // Zeros, so that registers of sums are taken up by one item after another.
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) low[i] = high[i] = 0;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += item_depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint32_t a =
            uniform(tile_descriptor_word(shared_address(s.weight[turn.stage][2 * warpgroup])));
        const std::uint32_t b = uniform(tile_descriptor_word(shared_address(s.tokens[turn.stage])));
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < item_depth / 16; ++i) {
            WarpgroupMultiply<Tokens, false>::run(low, tile_descriptor_of(a + 2 * i),
                                                  tile_descriptor_of(b + 2 * i), true);
            WarpgroupMultiply<Tokens, false>::run(high, tile_descriptor_of(a + box_elements * 2 / 16 + 2 * i),
                                                  tile_descriptor_of(b + 2 * i), true);
        }
        warpgroup_commit();
        if (previous >= 0) {
            warpgroup_wait<1>();
            release_stage<Form>(&s.empty[previous]);
        }
        previous = turn.stage;
        turn.next();
    }
    warpgroup_wait<0>();
    release_stage<Form>(&s.empty[previous]);
    hold(low);
    hold(high);
    store_item<Form, Tokens>(p, item, warpgroup, low, high);
}

#endif

template <class Form>
__global__ void __launch_bounds__(Form::threads, 1)
    sm90_experts_kernel(const __grid_constant__ BoxesProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#if defined(__CUDACC__)
    extern __shared__ std::uint8_t memory[];  // launched_shared_memory() gives few rows other machine code
#else
    std::uint8_t* memory = launched_shared_memory();
#endif
    using Shared = Ring<Form>;
    constexpr int stages = Shared::stages;
    Shared& s = *reinterpret_cast<Shared*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);  // the copier of weights and those of tokens
            // A lane of every multiplying warp of every block that this one copies to.
            barrier_init(&s.empty[i], Form::blocks * 4 * Form::warpgroups);
        }
        init_item_slots<Form>(s.items, Form::blocks - 1);  // the other copier of weights
        barrier_init_done();
        ask_for_weights<Form>(p);
    }
    allow_next_kernel();
    // Nobody copies to a block whose barriers are not made, and none leaves while others copy to it.
    if constexpr (Form::blocks > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    constexpr bool many = Form::most_tokens > 64;
    static_assert(!many || registers_suffice(Form::threads, copier_registers, multiplier_registers));
    if (t >= 128) {
        if (many) take_registers<multiplier_registers>();
        multiply_items<Form, stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            by_need<Form>(item.tokens, [&](auto width) {
                multiply_item<decltype(width)::value>(p, s, item, warpgroup, turn);
            });
        });
    } else {
        if (many) give_registers<copier_registers>();
        if (t < 32) {
            copy_weights<Form>(p, s);
        } else if (t >= 64) {
            copy_tokens<Form, stages>(p, s, t - 64);
        }
    }
    if constexpr (Form::blocks > 1) {
        cluster_arrive();
        cluster_wait();
    }
#endif
}

template <class Form>
void run(Context& c, const BoxesProblem& p) {
    constexpr int bytes = static_cast<int>(sizeof(Ring<Form>)) + 1024;
    static_assert(bytes <= 232448);
    c.check(
        cudaFuncSetAttribute(sm90_experts_kernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "the experts");
    if (c.failed()) return;
    auto blocks = static_cast<unsigned>(c.multiprocessors());
    if constexpr (Form::blocks > 1) {
        // All of them run at a time, for their first items are given.
        static const int clusters =
            most_clusters(c, "the experts", sm90_experts_kernel<Form>, Form::threads, bytes, Form::blocks);
        blocks = std::min(blocks / Form::blocks, static_cast<unsigned>(clusters)) * Form::blocks;
    }
    launch_clusters(c, "the experts", sm90_experts_kernel<Form>, dim3(blocks), Form::threads, bytes,
                    dim3(Form::blocks), p);
}

}  // namespace

bool sm90_experts_fit(std::int64_t experts, std::int64_t hidden, std::int64_t width) {
    return experts < most_groups && hidden % 8 == 0 && width % 8 == 0;
}

void sm90_experts(Context& c, const void* x, const DeviceMatrix& gate_up, const DeviceMatrix& down,
                  const Places& places, void* act, void* y, const DenseBeside& dense) {
    if (c.failed()) return;
    BoxesProblem p{};
    p.experts = static_cast<int>(gate_up.groups);
    p.hidden = static_cast<int>(gate_up.ins);
    p.width = static_cast<int>(down.ins);
    p.gate_up = tensor_map(c, gate_up.data, gate_up.groups * gate_up.outs, gate_up.ins, box_rows);
    p.down = tensor_map(c, down.data, down.groups * down.outs, down.ins, box_rows);
    p.x = static_cast<const bf16*>(x);
    p.row_at = places.row_at;
    p.offsets = places.offsets;
    set_counters(c, places, p);
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
    // Both blocks of a pair have boxes of every tile: a block that copies nothing would hold nobody up.
    const bool boxes_for_both =
        p.hidden % PairedRows::down_rows == 0 || p.hidden % PairedRows::down_rows > box_rows;
    if (places.pairs >= paired_rows * gate_up.groups && boxes_for_both) {
        run<PairedRows>(c, p);
    } else if (places.pairs >= many_rows * gate_up.groups) {
        run<ManyRows>(c, p);
    } else {
        run<FewRows>(c, p);
    }
}

}  // namespace dgemma::backend::cuda
