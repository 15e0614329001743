// All experts of a layer, and the dense MLP beside them, in one persistent kernel on Hopper, without the host
// knowing who goes where: bf16 weights, which the matrix units read from shared memory. The list of items is
// that of sm90_items.cuh.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_boxes.cuh"

namespace dgemma::backend::cuda {

namespace {

// Few rows an expert, so that what comes from memory is all that counts; or many, so that a box of weights is
// brought from the second-level cache for twice as many.
using FewRows = ItemForm<2, 64>;
using ManyRows = ItemForm<2, 128>;
template <class Form>
constexpr int stages_of = Form::most_tokens <= 64 ? 5 : 4;
constexpr int box_elements = box_rows * item_depth;
constexpr int many_rows = 64;  // of an expert on average

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
    const int lane = static_cast<int>(threadIdx.x) % 32;
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
            if (lane == 0) barrier_arrive(&s.empty[previous]);
        }
        previous = turn.stage;
        turn.next();
    }
    warpgroup_wait<0>();
    if (lane == 0) barrier_arrive(&s.empty[previous]);
    hold(low);
    hold(high);
    store_item<Form, Tokens>(p, item, warpgroup, low, high);
}

#endif

template <class Form>
__global__ void __launch_bounds__(Form::threads, 1)
    sm90_experts_kernel(const __grid_constant__ BoxesProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    using Shared = Ring<Form>;
    constexpr int stages = Shared::stages;
    Shared& s = *reinterpret_cast<Shared*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);      // the copier of weights and those of tokens
            barrier_init(&s.empty[i], 4 * Form::warpgroups);  // a lane of every multiplying warp
        }
        init_item_slots<Form>(s.items, 0);
        barrier_init_done();
        ask_for_weights<Form>(p);
    }
    allow_next_kernel();
    __syncthreads();
    if (t >= 128) {
        multiply_items<Form, stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            if (item.tokens <= 16) {
                multiply_item<16>(p, s, item, warpgroup, turn);
            } else if (item.tokens <= 32) {
                multiply_item<32>(p, s, item, warpgroup, turn);
            } else if (Form::most_tokens == 64 || item.tokens <= 64) {
                multiply_item<64>(p, s, item, warpgroup, turn);
            } else {
                multiply_item<Form::most_tokens>(p, s, item, warpgroup, turn);
            }
        });
    } else {
        if (t < 32) {
            copy_weights<Form>(p, s);
        } else if (t >= 64) {
            copy_tokens<Form, stages>(p, s, t - 64);
        }
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
    launch(c, "the experts", sm90_experts_kernel<Form>, static_cast<unsigned>(c.multiprocessors()),
           Form::threads, bytes, p);
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
    places.pairs >= many_rows* gate_up.groups ? run<ManyRows>(c, p) : run<FewRows>(c, p);
}

}  // namespace dgemma::backend::cuda
