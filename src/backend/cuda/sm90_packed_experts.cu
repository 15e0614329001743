// All experts of a layer, and the dense MLP beside them, on Hopper with weights of 4 and 8 bits: pieces (see
// packing.h) come as they are, become bf16 in the registers of the thread that holds them, and are multiplied
// from there. The list of items is that of sm90_items.cuh.
//
// A warpgroup unpacks one box while the matrix unit still works on its other one. What fp8 and nvfp4 scale by
// row or matrix is left to the sums.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packing.h"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_items.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int early_steps = 8;  // of weights that are asked for before the router is done

struct Problem : ItemsProblem {
    PackedMatrix gate_up, down;                     // of all experts
    PackedMatrix dense_gate, dense_up, dense_down;  // where dense_rows > 0
};

constexpr int shared_bytes = 232448;  // that a block may have

template <Packing Experts, Packing Dense>
struct __align__(1024) Ring {
    static constexpr int piece =
        piece_bytes(Experts) > piece_bytes(Dense) ? piece_bytes(Experts) : piece_bytes(Dense);
    static constexpr int room =
        (shared_bytes - 1024 - static_cast<int>(sizeof(ItemTables)) - 512) / (boxes * piece + 8192);
    static constexpr int stages = room > 12 ? 12 : room;
    bf16 tokens[stages][most_item_tokens * item_depth];
    std::uint8_t weight[stages][boxes * piece];
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void copy_line(void* to, const void* from, int bytes, std::uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void prefetch_line(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

// The boxes of weights of an item: bring(which of the stage's, its pieces along k).
template <class Bring>
__device__ __forceinline__ void weight_boxes(const Problem& p, int group, int tile, bool down, Bring bring) {
    const std::int64_t expert = group - 1;
    const auto pieces = [](const PackedMatrix& m, std::int64_t row) {
        return m.pieces + row / piece_rows * (m.ins / piece_columns) * piece_bytes(m.packing);
    };
    if (down) {
        const PackedMatrix& m = group == 0 ? p.dense_down : p.down;
        for (int b = 0; b < boxes; ++b) {
            const int row = (tile * boxes + b) * box_rows;
            if (row < p.hidden) bring(b, pieces(m, (group == 0 ? 0 : expert * p.hidden) + row));
        }
        return;
    }
    for (int half = 0; half < 2; ++half) {
        const int row = (2 * tile + half) * box_rows;
        if (row >= width_of(p, group)) break;
        if (group == 0) {
            bring(2 * half, pieces(p.dense_gate, row));
            bring(2 * half + 1, pieces(p.dense_up, row));
        } else {
            bring(2 * half, pieces(p.gate_up, expert * 2 * p.width + row));
            bring(2 * half + 1, pieces(p.gate_up, expert * 2 * p.width + p.width + row));
        }
    }
}

template <Packing Experts, Packing Dense>
__device__ void copy_weights(const Problem& p, Ring<Experts, Dense>& s) {
    using Shared = Ring<Experts, Dense>;
    Turn<Shared::stages> turn;
    take_items(p, s.items, [&](const Item& item) {
        const int bytes = item.group == 0 ? piece_bytes(Dense) : piece_bytes(Experts);
        const std::uint8_t* from[boxes] = {};
        int count = 0;
        weight_boxes(p, item.group, item.tile, item.down, [&](int box, const std::uint8_t* pieces) {
            from[box] = pieces;
            ++count;
        });
        for (int k = 0; k < item.ins; k += item_depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            barrier_expect(&s.full[turn.stage], count * bytes);
#pragma unroll
            for (int b = 0; b < boxes; ++b) {
                if (from[b] == nullptr) continue;
                copy_line(s.weight[turn.stage] + b * Shared::piece, from[b], bytes, &s.full[turn.stage]);
                from[b] += bytes;
            }
            turn.next();
        }
    });
}

template <Packing Experts, Packing Dense>
__device__ void ask_for_weights(const Problem& p) {
    int group = 0, tile = 0;
    if (!likely_first_item(p, group, tile)) return;
    const int bytes = group == 0 ? piece_bytes(Dense) : piece_bytes(Experts);
    const int steps = min(early_steps, p.hidden / item_depth);
    weight_boxes(p, group, tile, false,
                 [&](int, const std::uint8_t* pieces) { prefetch_line(pieces, steps * bytes); });
}

// --- from codes to pairs of bf16: a[4 kk + i] is pair i of columns 16 kk and on.

__device__ __forceinline__ std::uint32_t bits_of(__nv_bfloat162 x) {
    return *reinterpret_cast<const std::uint32_t*>(&x);
}
__device__ __forceinline__ __nv_bfloat162 pair_of(std::uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

template <Packing P>
struct Codes {
    uint4 codes[code_bytes(P) / 2048];
    uint4 scales;
    // piece: its address in shared memory; t: of the warpgroup's threads.
    __device__ __forceinline__ void load(std::uint32_t piece, int t) {
#pragma unroll
        for (int i = 0; i < code_bytes(P) / 2048; ++i) codes[i] = load_shared(piece + 2048 * i + 16 * t);
        if (P != Packing::fp8) scales = load_shared(piece + code_bytes(P) + 16 * (t / 32 * 8 + t % 32 / 4));
    }
    __device__ __forceinline__ std::uint32_t word(int i) const {
        const uint4& c = codes[i / 4];
        return i % 4 == 0 ? c.x : i % 4 == 1 ? c.y : i % 4 == 2 ? c.z : c.w;
    }
    __device__ __forceinline__ std::uint32_t scale(int i) const {
        return i == 0 ? scales.x : i == 1 ? scales.y : i == 2 ? scales.z : scales.w;
    }
};

// Of an affine group: scale and bias of rows r and r + 8, each twice.
template <Packing P>
struct Affine {
    __nv_bfloat162 scale[2], bias[2];
    __device__ __forceinline__ Affine(const Codes<P>& c, int group) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scale[r] = pair_of(__byte_perm(c.scale(2 * r + group), 0, 0x1010));
            bias[r] = pair_of(__byte_perm(c.scale(2 * r + group), 0, 0x3232));
        }
    }
    __device__ __forceinline__ std::uint32_t operator()(std::uint32_t codes, int i) const {
        return bits_of(__hfma2(pair_of(codes), scale[i % 2], bias[i % 2]));
    }
};

__device__ __forceinline__ void unpack(const Codes<Packing::affine4>& c, std::uint32_t (&a)[16]) {
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        const Affine<Packing::affine4> value(c, kk / 2);
        const std::uint32_t word = c.word(kk), upper = word >> 8;
        a[4 * kk] = value(word & 0x000F000Fu, 0);
        a[4 * kk + 1] = value(word & 0x00F000F0u, 1);
        a[4 * kk + 2] = value(upper & 0x000F000Fu, 2);
        a[4 * kk + 3] = value(upper & 0x00F000F0u, 3);
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::affine8>& c, std::uint32_t (&a)[16]) {
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        const Affine<Packing::affine8> value(c, kk / 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t word = c.word(2 * kk + i / 2);
            a[4 * kk + i] = value(i % 2 == 0 ? word & 0x00FF00FFu : __byte_perm(word, 0, 0x4341), i);
        }
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::fp8>& c, std::uint32_t (&a)[16]) {
    const __nv_bfloat162 up = pair_of(0x7B807B80u);  // 2^120
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Exponent and mantissa at their places: the value times 2^-120, subnormal ones too.
            const std::uint32_t word = c.word(2 * kk + i / 2);
            const std::uint32_t bits = i % 2 == 0 ? word & 0x87F087F0u
                                                  : (word << 4 & 0x00F000F0u) | (word >> 3 & 0x07000700u) |
                                                        (word << 1 & 0x80008000u);
            a[4 * kk + i] = bits_of(__hmul2(pair_of(bits), up));
        }
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::nvfp4>& c, std::uint32_t (&a)[16]) {
    constexpr std::uint32_t all = 0x81C081C0u;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        const std::uint32_t word = c.word(kk);
        __nv_bfloat162 scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            scale[r] = pair_of(__byte_perm(c.scale(2 * r + kk / 2), 0, kk % 2 == 0 ? 0x1010 : 0x3232));
        // The value times 2^-126; the scale brings 2^118.
        const std::uint32_t bits[4] = {
            word & all, word << 3 & all, word << 6 & all,
            (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00C000C0u)};
#pragma unroll
        for (int i = 0; i < 4; ++i) a[4 * kk + i] = bits_of(__hmul2(pair_of(bits[i]), scale[i % 2]));
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

template <int Tokens>
__device__ __forceinline__ void multiply_box(float (&sums)[Tokens / 2], const std::uint32_t (&a)[16],
                                             std::uint64_t tokens) {
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < item_depth / 16; ++i)
        WarpgroupMultiplyRegisters<Tokens>::run(sums, a + 4 * i, tokens + 2 * i, true);
    warpgroup_commit();
}

// The warpgroup's two boxes of an item times `Tokens` tokens. With few tokens each box has registers of its
// own, and one is unpacked while the other is multiplied; with many there are not enough, and the other
// warpgroup has to keep the matrix unit busy.
template <Packing P, int Tokens, class Shared>
__device__ void multiply_item(const Problem& p, Shared& s, const Item& item, int warpgroup,
                              Turn<Shared::stages>& turn) {
    const int t = static_cast<int>(threadIdx.x) % 128, lane = t % 32;
    constexpr bool apart = Tokens <= 32;
    float low[Tokens / 2], high[Tokens / 2];
    std::uint32_t a[apart ? 2 : 1][16];
    // Zeros, so that registers of sums are taken up by one item after another.
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) low[i] = high[i] = 0;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += item_depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint32_t weight = shared_address(s.weight[turn.stage]) + 2 * warpgroup * Shared::piece;
        const std::uint64_t b = tile_descriptor(s.tokens[turn.stage]);
        Codes<P> codes[2];
        codes[0].load(weight, t);
        codes[1].load(weight + Shared::piece, t);
        if (previous >= 0) warpgroup_wait<apart ? 1 : 0>();  // the first registers are free
        if (!apart && previous >= 0 && lane == 0) barrier_arrive(&s.empty[previous]);
        unpack(codes[0], a[0]);
        multiply_box<Tokens>(low, a[0], b);
        if (previous >= 0 || !apart) warpgroup_wait<apart ? 1 : 0>();  // and the second, and the stage before
        if (apart && previous >= 0 && lane == 0) barrier_arrive(&s.empty[previous]);
        unpack(codes[1], a[apart ? 1 : 0]);
        multiply_box<Tokens>(high, a[apart ? 1 : 0], b);
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
            const int row = (item.tile * 2 + warpgroup) * 2 * box_rows;
            scale_sums<P>(m, expert, row, f);
            scale_sums<P>(m, expert, row + box_rows, g);
        } else {
            const int row = (item.tile * 2 + warpgroup) * box_rows;
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
    store_item<Tokens>(p, item, warpgroup, low, high);
}

template <Packing P, class Shared>
__device__ __forceinline__ void multiply_by_need(const Problem& p, Shared& s, const Item& item, int warpgroup,
                                                 Turn<Shared::stages>& turn) {
    if (item.tokens <= 16) {
        multiply_item<P, 16>(p, s, item, warpgroup, turn);
    } else if (item.tokens <= 32) {
        multiply_item<P, 32>(p, s, item, warpgroup, turn);
    } else {
        multiply_item<P, 64>(p, s, item, warpgroup, turn);
    }
}

#endif

template <Packing Experts, Packing Dense>
__global__ void __launch_bounds__(item_threads, 1)
    sm90_packed_experts_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    using Shared = Ring<Experts, Dense>;
    constexpr int stages = Shared::stages;
    Shared& s = *reinterpret_cast<Shared*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);
            barrier_init(&s.empty[i], 8);
        }
        init_item_slots(s.items);
        barrier_init_done();
        ask_for_weights<Experts, Dense>(p);
    }
    begin_kernel();
    count_items(p, s.items);
    if (t >= 128) {
        take_registers<224>();
        multiply_items<stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            if (Experts == Dense || item.group > 0) {
                multiply_by_need<Experts>(p, s, item, warpgroup, turn);
            } else {
                multiply_item<Dense, 64>(p, s, item, warpgroup, turn);  // every row is a token
            }
        });
    } else {
        give_registers<56>();
        if (t == 0) {
            copy_weights<Experts, Dense>(p, s);
        } else if (t >= 64) {
            copy_tokens<stages>(p, s, t - 64);
        }
    }
#endif
}

template <Packing Experts, Packing Dense>
void run_packed(Context& c, const Problem& p) {
    auto* kernel = sm90_packed_experts_kernel<Experts, Dense>;
    constexpr int bytes = static_cast<int>(sizeof(Ring<Experts, Dense>)) + 1024;
    static_assert(bytes <= shared_bytes && Ring<Experts, Dense>::stages >= 4);
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "the experts");
    launch(c, "the experts", kernel, static_cast<unsigned>(c.multiprocessors()), item_threads, bytes, p);
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
    p.ready = places.ready;
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
