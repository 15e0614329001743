// All experts of a layer in one persistent kernel on Hopper, without the host knowing who goes where.
//
// Weights are the 64-high side of the matrix instruction and tokens its other side, 16 to 64 of them by need:
// at one canvas an expert has about 16. Items of at most 64 tokens go to the two multiplying warpgroups in
// turn, so that one multiplies while the other writes; larger ones are shared by both. Every block walks the
// same list of items: first, expert after expert, tiles of 64 gate and 64 up rows, whose gated product goes
// to memory; then tiles of 128 rows of the down projection. A block copies the weights of its next items
// while others still multiply; only the tokens of a down tile wait until all of its expert's hidden layer is
// written. An item earlier in the list never waits for a later one, so the list always ends.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int depth = 64;         // of one stage in k
constexpr int weight_rows = 128;  // of one stage: 64 gate and 64 up, or 128 down
constexpr int most_tokens = 128;  // of one item
constexpr int box_tokens = 16;
constexpr int stages = 6;
constexpr int threads = 384;  // one warpgroup copies, two multiply
constexpr int most_experts = 1024;

struct Problem {
    CUtensorMap gate_up, down, x, act;
    const std::int32_t* offsets;  // [experts + 1]
    std::int32_t* ready;          // [experts]
    bf16 *act_out, *y;
    int experts, width, hidden;
};

struct __align__(1024) Shared {
    bf16 weight[stages][weight_rows * depth];
    bf16 tokens[stages][most_tokens * depth];
    std::uint64_t full[stages], empty[stages];
    int offsets[most_experts + 1];
    int blocks[most_experts + 1];  // token blocks of the experts before
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A walk over the items of this block: `each(expert, tile, first token, tokens, down)` in order.
template <class Each>
__device__ void walk(const Problem& p, const Shared& s, Each each) {
    const int gate_tiles = (p.width + 63) / 64, down_tiles = (p.hidden + 127) / 128;
    const int all_blocks = s.blocks[p.experts];
    const int gate_items = all_blocks * gate_tiles, items = gate_items + all_blocks * down_tiles;
    int expert = 0;
    bool down = false;
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
        if (!down && i >= gate_items) down = true, expert = 0;
        const int tiles = down ? down_tiles : gate_tiles;
        const int at = down ? i - gate_items : i;
        while (at >= s.blocks[expert + 1] * tiles) ++expert;
        const int blocks = s.blocks[expert + 1] - s.blocks[expert];
        const int inside = at - s.blocks[expert] * tiles;
        const int first = s.offsets[expert] + inside % blocks * most_tokens;
        each(expert, inside / blocks, first, min(most_tokens, s.offsets[expert + 1] - first), down);
    }
}

// The place in the ring of one warpgroup.
struct Turn {
    int stage = 0, phase = 0;
    __device__ void next() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

// Signals that a block of tokens of one gate tile gives: one for each warpgroup that had a part.
__device__ int signals(int tokens) {
    const int rest = tokens % most_tokens;
    return tokens / most_tokens * 2 + (rest > 64 ? 2 : rest > 0 ? 1 : 0);
}

__device__ void copy_weights(const Problem& p, Shared& s) {
    Turn turn;
    walk(p, s, [&](int expert, int tile, int, int, bool down) {
        const int ins = down ? p.width : p.hidden;
        for (int k = 0; k < ins; k += depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            barrier_expect(&s.full[turn.stage], weight_rows * depth * 2);
            if (down) {
                copy_box(s.weight[turn.stage], p.down, k, expert * p.hidden + tile * 128, &s.full[turn.stage],
                         keep_short);
            } else {
                const int row = expert * 2 * p.width + tile * 64;
                copy_box(s.weight[turn.stage], p.gate_up, k, row, &s.full[turn.stage], keep_short);
                copy_box(s.weight[turn.stage] + 64 * depth, p.gate_up, k, row + p.width, &s.full[turn.stage],
                         keep_short);
            }
            turn.next();
        }
    });
}

__device__ void copy_tokens(const Problem& p, Shared& s) {
    Turn turn;
    const int gate_tiles = (p.width + 63) / 64;
    walk(p, s, [&](int expert, int, int first, int tokens, bool down) {
        const int ins = down ? p.width : p.hidden;
        if (down) {
            const int written = gate_tiles * signals(s.offsets[expert + 1] - s.offsets[expert]);
            int seen = 0;
            do {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n"
                             : "=r"(seen)
                             : "l"(p.ready + expert)
                             : "memory");
            } while (seen < written);
            fence_copy_engine();
        }
        const int boxes = (tokens + box_tokens - 1) / box_tokens;
        for (int k = 0; k < ins; k += depth) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            barrier_expect(&s.full[turn.stage], boxes * box_tokens * depth * 2);
            for (int b = 0; b < boxes; ++b) {
                copy_box(s.tokens[turn.stage] + b * box_tokens * depth, down ? p.act : p.x, k,
                         first + b * box_tokens, &s.full[turn.stage]);
            }
            turn.next();
        }
    });
}

// Lets an item of the other warpgroup go by.
__device__ void skip_item(Shared& s, int ins, Turn& turn) {
    for (int k = 0; k < ins; k += depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[turn.stage]);
        turn.next();
    }
}

// `Tokens` tokens of an item from row `skip` of its tile on: the sums of weight rows 0 to 63 and 64 to 127,
// then what becomes of them.
template <int Tokens>
__device__ void multiply_item(const Problem& p, Shared& s, int tile, int first, int tokens, int skip,
                              bool down, Turn& turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    float low[Tokens / 2], high[Tokens / 2];
    const int ins = down ? p.width : p.hidden;
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < ins; k += depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        const std::uint64_t a = tile_descriptor(s.weight[turn.stage]);
        const std::uint64_t b = tile_descriptor(s.tokens[turn.stage] + skip * depth);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < depth / 16; ++i) {
            WarpgroupMultiply<Tokens, false>::run(low, a + 2 * i, b + 2 * i, k > 0 || i > 0);
            WarpgroupMultiply<Tokens, false>::run(high, a + 64 * depth * 2 / 16 + 2 * i, b + 2 * i,
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
    const int outs = down ? p.hidden : p.width;
    bf16* out = down ? p.y : p.act_out;
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        const int token = 8 * j + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = 4 * j + 2 * h;
            const int row = warp * 16 + 8 * h + lane % 4 * 2;
            bf16* to = out + static_cast<std::int64_t>(first + token) * outs;
            if (down) {
                const std::uint32_t a = transpose8(pack2(low[i], low[i + 1]));
                const std::uint32_t b = transpose8(pack2(high[i], high[i + 1]));
                const int column = tile * 128 + row;
                if (token < tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
                if (token < tokens && column + 64 < outs)
                    *reinterpret_cast<std::uint32_t*>(to + column + 64) = b;
            } else {
                float gated[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const float gate = rounded<bf16>(gelu(rounded<bf16>(low[i + c])));
                    gated[c] = gate * rounded<bf16>(high[i + c]);
                }
                const std::uint32_t a = transpose8(pack2(gated[0], gated[1]));
                const int column = tile * 64 + row;
                if (token < tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
            }
        }
    }
}

__device__ void multiply(const Problem& p, Shared& s) {
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;
    Turn turn;
    int item = 0;
    walk(p, s, [&](int expert, int tile, int first, int tokens, bool down) {
        const bool shared = tokens > 64;
        if (!shared && item++ % 2 != group) {
            skip_item(s, down ? p.width : p.hidden, turn);
            return;
        }
        const int skip = shared ? 64 * group : 0;
        const int own = shared ? (group == 0 ? 64 : tokens - 64) : tokens;
        if (own <= 16) {
            multiply_item<16>(p, s, tile, first + skip, own, skip, down, turn);
        } else if (own <= 32) {
            multiply_item<32>(p, s, tile, first + skip, own, skip, down, turn);
        } else {
            multiply_item<64>(p, s, tile, first + skip, own, skip, down, turn);
        }
        if (!down) {
            // The other blocks' copy engines read what was written here.
            __threadfence();
            fence_copy_engine();
            asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group) : "memory");
            if (threadIdx.x % 128 == 0)
                asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(p.ready + expert) : "memory");
        }
    });
}

#endif

__global__ void __launch_bounds__(threads, 1) sm90_experts_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    Shared& s = *reinterpret_cast<Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 2);   // the copier of weights and that of tokens
            barrier_init(&s.empty[i], 8);  // a lane of every multiplying warp
        }
        barrier_init_done();
    }
    begin_kernel();
    for (int e = static_cast<int>(threadIdx.x); e <= p.experts; e += threads) s.offsets[e] = p.offsets[e];
    __syncthreads();
    if (threadIdx.x < 32) {
        int sum = 0;
        for (int e0 = 0; e0 < p.experts; e0 += 32) {
            const int e = e0 + static_cast<int>(threadIdx.x);
            int blocks =
                e < p.experts ? (s.offsets[e + 1] - s.offsets[e] + most_tokens - 1) / most_tokens : 0;
            const int own = blocks;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int before = __shfl_up_sync(0xFFFFFFFFu, blocks, step);
                if (static_cast<int>(threadIdx.x) >= step) blocks += before;
            }
            if (e < p.experts) s.blocks[e] = sum + blocks - own;
            sum += __shfl_sync(0xFFFFFFFFu, blocks, 31);
        }
        if (threadIdx.x == 0) s.blocks[p.experts] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        multiply(p, s);
    } else if (threadIdx.x == 0) {
        copy_weights(p, s);
    } else if (threadIdx.x == 32) {
        copy_tokens(p, s);
    }
#endif
}

}  // namespace

bool sm90_experts_fit(std::int64_t experts, std::int64_t hidden, std::int64_t width) {
    return experts <= most_experts && hidden % 8 == 0 && width % 8 == 0;
}

void sm90_experts(Context& c, const void* x, std::int64_t pairs, const DeviceMatrix& gate_up,
                  const DeviceMatrix& down, const Places& places, void* act, void* y) {
    if (c.failed() || pairs == 0) return;
    Problem p{};
    p.experts = static_cast<int>(gate_up.groups);
    p.hidden = static_cast<int>(gate_up.ins);
    p.width = static_cast<int>(down.ins);
    p.gate_up = tensor_map(c, gate_up.data, gate_up.groups * gate_up.outs, gate_up.ins, 64);
    p.down = tensor_map(c, down.data, down.groups * down.outs, down.ins, 128);
    p.x = tensor_map(c, x, pairs, p.hidden, box_tokens);
    p.act = tensor_map(c, act, pairs, p.width, box_tokens);
    p.offsets = places.offsets;
    p.ready = places.ready;
    p.act_out = static_cast<bf16*>(act);
    p.y = static_cast<bf16*>(y);
    constexpr int bytes = static_cast<int>(sizeof(Shared)) + 1024;
    c.check(cudaFuncSetAttribute(sm90_experts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "the experts");
    if (c.failed()) return;
    launch(c, "the experts", sm90_experts_kernel, static_cast<unsigned>(c.multiprocessors()), threads, bytes,
           p);
}

}  // namespace dgemma::backend::cuda
