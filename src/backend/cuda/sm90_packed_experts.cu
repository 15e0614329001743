// All experts of a layer, and the dense MLP beside them, on Hopper with weights of 4 and 8 bits: pieces (see
// packing.h) come as they are, become bf16 in the registers of the thread that holds them, and are multiplied
// from there. The list of items is that of sm90_items.cuh.
//
// A warpgroup unpacks half a box while the matrix unit still works on the half before. What fp8 and nvfp4
// scale by row or matrix is left to the sums.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packing.h"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_item_tokens.cuh"
#include "backend/cuda/sm90_items.cuh"
#include "backend/cuda/sm90_unpack.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int early_steps = 8;  // of weights that are asked for before the router is done

struct Problem : ItemsProblem {
    PackedMatrix gate_up, down;                     // of all experts
    PackedMatrix dense_gate, dense_up, dense_down;  // where dense_rows > 0
};

constexpr int shared_bytes = 232448;  // that a block may have
constexpr int copier_registers = 56, multiplier_registers = 152;

// Three warpgroups: two do not hide the latencies of unpacking, and four leave too few registers for the sums
// of 64 tokens.
using Form = ItemForm<3, 64, item_depth, 32>;

template <Packing Experts_, Packing Dense_>
struct __align__(1024) Ring {
    static constexpr Packing Experts = Experts_, Dense = Dense_;
    static constexpr int piece =
        piece_bytes(Experts) > piece_bytes(Dense) ? piece_bytes(Experts) : piece_bytes(Dense);
    static constexpr int room = (shared_bytes - 1024 - static_cast<int>(sizeof(ItemTables)) - 512) /
                                (Form::boxes * piece + 2 * Form::most_tokens * item_depth);
    static constexpr int stages = room > 12 ? 12 : room;
    bf16 tokens[stages][Form::most_tokens * item_depth];
    std::uint8_t weight[stages][Form::boxes * piece];
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void copy_line(std::uint32_t to, const void* from, int bytes,
                                          std::uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void prefetch_line(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

// The pieces along k of box `box` of a stage, in the items of a tile; null: there is no such box.
__device__ __forceinline__ const std::uint8_t* box_pieces(const Problem& p, int group, int tile, bool down,
                                                          int box) {
    const int expert = group == 0 ? 0 : group - 1;
    const PackedMatrix* m = nullptr;
    int row = 0;
    if (down) {
        m = group == 0 ? &p.dense_down : &p.down;
        row = tile * Form::down_rows + box * box_rows;
        if (row >= p.hidden) return nullptr;
        row += expert * p.hidden;
    } else {
        row = tile * Form::gate_rows + box / 2 * box_rows;
        if (row >= width_of(p, group)) return nullptr;
        if (group == 0) {
            m = box % 2 == 0 ? &p.dense_gate : &p.dense_up;
        } else {
            m = &p.gate_up;
            row += expert * 2 * p.width + box % 2 * p.width;
        }
    }
    return m->pieces + std::int64_t{row / piece_rows} * (m->ins / piece_columns) * piece_bytes(m->packing);
}

// Two warps copy a stage's boxes, the even and the odd ones. tell_next: of the warp that takes the items.
template <class Shared, class TellNext>
__device__ __forceinline__ void copy_item_weights(const Problem& p, Shared& s, Turn<Shared::stages>& turn,
                                                  const Item& item, int box, int told, TellNext tell_next) {
    const bool first = static_cast<int>(threadIdx.x) % 32 == 0;
    const int bytes = piece_bytes(item.group == 0 ? Shared::Dense : Shared::Experts);
    const std::uint8_t* from =
        box < Form::boxes ? box_pieces(p, item.group, item.tile, item.down, box) : nullptr;
    const int all = __popc(__ballot_sync(0xFFFFFFFFu, from != nullptr)) * bytes;
    const std::uint32_t to = shared_address(s.weight[0]) + box * Shared::piece;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += item_depth) {
        if (k == told) tell_next();
        barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
        if (first) barrier_expect(&s.full[turn.stage], all);
        __syncwarp();
        if (from != nullptr) {
            copy_line(to + turn.stage * Form::boxes * Shared::piece, from, bytes, &s.full[turn.stage]);
            from += bytes;
        }
        turn.next();
    }
}
template <class Shared>
__device__ void copy_weights(const Problem& p, Shared& s) {
    Turn<Shared::stages> turn;
    const int warp = static_cast<int>(threadIdx.x) / 32, box = static_cast<int>(threadIdx.x) % 32 * 2 + warp;
    if (warp == 0) {
        take_items<Form>(p, s.items, [&](const Item& item, auto tell_next) {
            copy_item_weights(p, s, turn, item, box, tell_next_at<Form, Shared::stages>(item), tell_next);
        });
    } else {
        follow_items(p, s.items,
                     [&](const Item& item) { copy_item_weights(p, s, turn, item, box, -1, [] {}); });
    }
}

template <class Shared>
__device__ void ask_for_weights(const Problem& p) {
    int group = 0, tile = 0;
    if (!likely_first_item<Form>(p, group, tile)) return;
    const int bytes = piece_bytes(group == 0 ? Shared::Dense : Shared::Experts);
    const int steps = min(early_steps, p.hidden / item_depth);
    for (int b = 0; b < Form::boxes; ++b) {
        const std::uint8_t* pieces = box_pieces(p, group, tile, false, b);
        if (pieces != nullptr) prefetch_line(pieces, steps * bytes);
    }
}

// What the sums of rows lane / 4 and + 8 of a warp's 16 are multiplied by: rows from `row` of a group.
template <Packing P>
__device__ __forceinline__ void scale_sums(const PackedMatrix& m, int group, int row, float (&factor)[2]) {
    if (P == Packing::fp8) {
        const int own =
            row + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
        const float* scales = m.row_scales + static_cast<std::int64_t>(group) * m.outs;
#pragma unroll
        for (int h = 0; h < 2; ++h) factor[h] = own + 8 * h < m.outs ? scales[own + 8 * h] : 0.0f;
    } else if (P == Packing::nvfp4) {
        factor[0] = factor[1] = m.globals[group] * 256.0f;
    } else {
        factor[0] = factor[1] = 65536.0f;
    }
}

// The warpgroup's two boxes of an item times `Tokens` tokens. Half a box is unpacked while the half before it
// is multiplied.
template <Packing P, int Tokens, class Shared>
__device__ void multiply_item(const Problem& p, Shared& s, const Item& item, int warpgroup,
                              Turn<Shared::stages>& turn) {
    const int t = static_cast<int>(threadIdx.x) % 128, lane = t % 32;
    constexpr bool early = Tokens <= 32;  // there are registers for both boxes' codes
    float low[Tokens / 2], high[Tokens / 2];
    std::uint32_t a[2][8];
    // Zeros, so that registers of sums are taken up by one item after another.
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) low[i] = high[i] = 0;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += item_depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint32_t weight = shared_address(s.weight[turn.stage]) + 2 * warpgroup * Shared::piece;
        const std::uint32_t tokens = uniform(tile_descriptor_word(shared_address(s.tokens[turn.stage])));
        Codes<P> codes[2];
        codes[0].load(weight, t);
        if (early) codes[1].load(weight + Shared::piece, t);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int box = part / 2, half = part % 2;
            if (!early && part == 2) codes[1].load(weight + Shared::piece, t);
            warpgroup_wait<1>();  // the registers are free, and after the first part the stage before
            if (part == 1 && previous >= 0 && lane == 0) barrier_arrive(&s.empty[previous]);
            unpack(codes[box], half, a[half]);
            warpgroup_begin();
#pragma unroll
            for (std::uint32_t i = 0; i < 2; ++i)
                WarpgroupMultiplyRegisters<Tokens>::run(box == 0 ? low : high, a[half] + 4 * i,
                                                        tile_descriptor_of(tokens + 4 * half + 2 * i), true);
            warpgroup_commit();
        }
        previous = turn.stage;
        turn.next();
    }
    warpgroup_wait<0>();
    if (lane == 0) barrier_arrive(&s.empty[previous]);
    hold(low);
    hold(high);
    {
        const int expert = item.group == 0 ? 0 : item.group - 1;
        float f[2] = {1, 1}, g[2] = {1, 1};
        if (item.down) {
            const PackedMatrix& m = item.group == 0 ? p.dense_down : p.down;
            const int row = (item.tile * Form::warpgroups + warpgroup) * 2 * box_rows;
            scale_sums<P>(m, expert, row, f);
            scale_sums<P>(m, expert, row + box_rows, g);
        } else {
            const int row = (item.tile * Form::warpgroups + warpgroup) * box_rows;
            scale_sums<P>(item.group == 0 ? p.dense_gate : p.gate_up, expert, row, f);
            scale_sums<P>(item.group == 0 ? p.dense_up : p.gate_up, expert,
                          item.group == 0 ? row : p.width + row, g);
        }
#pragma unroll
        for (int i = 0; i < Tokens / 2; ++i) {
            low[i] *= f[i % 4 / 2];
            high[i] *= g[i % 4 / 2];
        }
    }
    store_item<Form, Tokens>(p, item, warpgroup, low, high);
}

template <Packing P, class Shared>
__device__ __forceinline__ void multiply_by_need(const Problem& p, Shared& s, const Item& item, int warpgroup,
                                                 Turn<Shared::stages>& turn) {
    by_need<Form>(item.tokens,
                  [&](auto width) { multiply_item<P, decltype(width)::value>(p, s, item, warpgroup, turn); });
}

#endif

template <Packing Experts, Packing Dense>
__global__ void __launch_bounds__(Form::threads, 1)
    sm90_packed_experts_kernel(const __grid_constant__ Problem p) {
    static_assert(registers_suffice(Form::threads, copier_registers, multiplier_registers));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    using Shared = Ring<Experts, Dense>;
    constexpr int stages = Shared::stages;
    Shared& s = *reinterpret_cast<Shared*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 2 + token_copiers);  // the two copiers of weights and those of tokens
            barrier_init(&s.empty[i], 4 * Form::warpgroups);
        }
        init_item_slots<Form>(s.items, 1);
        barrier_init_done();
        ask_for_weights<Shared>(p);
    }
    allow_next_kernel();
    __syncthreads();
    if (t >= 128) {
        take_registers<multiplier_registers>();
        multiply_items<Form, stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            if (Experts == Dense || item.group > 0) {
                multiply_by_need<Experts>(p, s, item, warpgroup, turn);
            } else {
                multiply_item<Dense, Form::most_tokens>(p, s, item, warpgroup, turn);  // every row is a token
            }
        });
    } else {
        give_registers<copier_registers>();
        if (t < 64) {
            copy_weights(p, s);
        } else {
            copy_tokens<Form, stages>(p, s, t - 64);
        }
    }
#endif
}

template <Packing Experts, Packing Dense>
void run_packed(Context& c, const Problem& p) {
    auto* kernel = sm90_packed_experts_kernel<Experts, Dense>;
    using Shared = Ring<Experts, Dense>;
    constexpr int bytes = static_cast<int>(sizeof(Shared)) + 1024;
    static_assert(bytes <= shared_bytes && Shared::stages >= 4);
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "the experts");
    launch(c, "the experts", kernel, static_cast<unsigned>(c.multiprocessors()), Form::threads, bytes, p);
}

}  // namespace

bool sm90_packed_together(Packing experts, Packing dense) {
    return experts == dense || (experts == Packing::affine4 && dense == Packing::affine8) ||
           (experts == Packing::nvfp4 && dense == Packing::fp8);
}

void sm90_packed_experts(Context& c, const void* x, const PackedMatrix& gate_up, const PackedMatrix& down,
                         const Places& places, void* act, void* y, const PackedDense& dense) {
    if (c.failed()) return;
    Problem p{};
    set_counters(c, places, p);
    if (gate_up.packing != Packing::none) {
        p.experts = static_cast<int>(gate_up.groups);
        p.hidden = static_cast<int>(gate_up.ins);
        p.width = static_cast<int>(down.ins);
        p.gate_up = gate_up, p.down = down;
        p.x = static_cast<const bf16*>(x);
        p.row_at = places.row_at;
        p.offsets = places.offsets;
        p.act = static_cast<bf16*>(act);
        p.y = static_cast<bf16*>(y);
    }
    if (dense.rows > 0) {
        p.hidden = static_cast<int>(dense.gate.ins);
        p.dense_gate = dense.gate, p.dense_up = dense.up, p.dense_down = dense.down;
        p.dense_x = static_cast<const bf16*>(dense.x);
        p.dense_act = static_cast<bf16*>(dense.act);
        p.dense_y = static_cast<bf16*>(dense.y);
        p.dense_rows = static_cast<int>(dense.rows);
        p.dense_width = static_cast<int>(dense.gate.outs);
    }
    const Packing other = p.dense_rows > 0 ? dense.gate.packing : gate_up.packing;
    const Packing own = p.experts > 0 ? gate_up.packing : other;
    if (own == Packing::affine8 && other == own) {
        run_packed<Packing::affine8, Packing::affine8>(c, p);
    } else if (own == Packing::affine4 && other == own) {
        run_packed<Packing::affine4, Packing::affine4>(c, p);
    } else if (own == Packing::affine4 && other == Packing::affine8) {
        run_packed<Packing::affine4, Packing::affine8>(c, p);
    } else if (own == Packing::fp8 && other == own) {
        run_packed<Packing::fp8, Packing::fp8>(c, p);
    } else if (own == Packing::nvfp4 && other == own) {
        run_packed<Packing::nvfp4, Packing::nvfp4>(c, p);
    } else if (own == Packing::nvfp4 && other == Packing::fp8) {
        run_packed<Packing::nvfp4, Packing::fp8>(c, p);
    } else {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend has no kernel for experts and dense MLP in these two formats together");
    }
}

}  // namespace dgemma::backend::cuda
