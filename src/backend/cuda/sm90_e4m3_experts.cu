// All experts of a layer, and the dense MLP beside them, on Hopper with weights and activations in E4M3,
// which the matrix units read from shared memory as they are. The list of items is that of sm90_items.cuh.
//
// Memory sees what the bf16 kernel (sm90_experts.cu) shows it, byte for byte: a box of 64 rows has 128 codes
// of each where that one has 64 bf16. The tensor maps know no E4M3 and are told of half as many 16-bit
// numbers; a box that reaches beyond the end of k (704 and 2112 are no multiples of 128) is filled up with
// zeros, as the tokens are.
//
// The matrix unit keeps about 14 bits of a sum, so the sums of every 128 columns are added up in registers of
// f32. On the way they take the scale of those columns of the token, which the tokens of down items have: a
// warpgroup that made 64 columns of a hidden layer knows their largest number, nobody knows that of a whole
// row.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90_e4m3_items.cuh"

namespace dgemma::backend::cuda {

namespace {

// Few rows an expert, so that what comes from memory is all that counts; or many, so that a box of weights is
// brought from the second-level cache for twice as many.
using FewRows = ItemForm<2, 64, depth>;
using ManyRows = ItemForm<2, 128, depth>;
constexpr int many_rows = 64;  // of an expert on average
constexpr int copier_registers = 56, multiplier_registers = 224;

template <class Form>
__global__ void __launch_bounds__(Form::threads, 1)
    sm90_e4m3_experts_kernel(const __grid_constant__ Problem p) {
    static_assert(registers_suffice(Form::threads, copier_registers, multiplier_registers));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    std::uint8_t* memory = launched_shared_memory();
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
        take_registers<multiplier_registers>();
        multiply_items<Form, stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            by_need<Form>(item.tokens, [&](auto width) {
                multiply_item<decltype(width)::value>(p, s, item, warpgroup, turn);
            });
        });
    } else {
        give_registers<copier_registers>();
        if (t < 32) {
            copy_weights<Form>(p, s);
        } else if (t >= 64) {
            copy_codes<Form>(p, s, t - 64);
        }
    }
#endif
}

template <class Form>
void run(Context& c, const Problem& p) {
    constexpr int bytes = static_cast<int>(sizeof(Ring<Form>)) + 1024;
    static_assert(bytes <= 232448);
    auto* kernel = sm90_e4m3_experts_kernel<Form>;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "the experts");
    launch(c, "the experts", kernel, static_cast<unsigned>(c.multiprocessors()), Form::threads, bytes, p);
}

// Of codes [rows, ins], as 16-bit numbers.
CUtensorMap boxes_of(Context& c, const E4m3Matrix& m) {
    return tensor_map(c, m.codes, m.groups * m.outs, m.ins / 2, box_rows);
}

}  // namespace

void sm90_e4m3_experts(Context& c, const E4m3Rows& x, const E4m3Matrix& gate_up, const E4m3Matrix& down,
                       const Places& places, const E4m3Target& hidden, void* y, const E4m3Dense& dense) {
    if (c.failed()) return;
    Problem p{};
    set_counters(c, places, p);
    if (gate_up.codes != nullptr) {
        p.experts = static_cast<int>(gate_up.groups);
        p.hidden = static_cast<int>(gate_up.ins);
        p.width = static_cast<int>(down.ins);
        p.gate_up = boxes_of(c, gate_up), p.down = boxes_of(c, down);
        p.gate_up_scales = gate_up.scales, p.down_scales = down.scales;
        p.codes = x;
        p.row_at = places.row_at;
        p.offsets = places.offsets;
        p.hidden_layer = hidden;
        p.y = static_cast<bf16*>(y);
    }
    if (dense.rows > 0) {
        p.hidden = static_cast<int>(dense.gate.ins);
        p.dense_gate = boxes_of(c, dense.gate), p.dense_up = boxes_of(c, dense.up);
        p.dense_down = boxes_of(c, dense.down);
        p.dense_gate_scales = dense.gate.scales, p.dense_up_scales = dense.up.scales;
        p.dense_down_scales = dense.down.scales;
        p.dense_codes = dense.x;
        p.dense_hidden_layer = dense.hidden;
        p.dense_y = static_cast<bf16*>(dense.y);
        p.dense_rows = static_cast<int>(dense.rows);
        p.dense_width = static_cast<int>(dense.gate.outs);
    }
    places.pairs >= many_rows* gate_up.groups&& gate_up.codes != nullptr ? run<ManyRows>(c, p)
                                                                         : run<FewRows>(c, p);
}

}  // namespace dgemma::backend::cuda
