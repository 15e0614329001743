// What a block of the experts' kernel for E4M3 does with an item (sm90_e4m3_experts.cu): copies, products,
// and what becomes of the sums.
#pragma once

#include <type_traits>

#include "backend/cuda/device.cuh"
#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_boxes.cuh"
#include "backend/cuda/sm90_item_tokens.cuh"
#include "backend/cuda/sm90_wgmma_e4m3.cuh"
#include "base/e4m3_rows.h"

namespace dgemma::backend::cuda {

namespace {

constexpr int depth = 128;          // of one stage in k
constexpr int scales_together = 4;  // of a token, that are copied at a time: 16 bytes
static_assert(kE4m3HiddenColumns == depth && depth == 2 * box_rows && box_bytes == box_rows * depth);

struct Problem : BoxesProblem {
    const float *gate_up_scales, *down_scales;  // of rows
    const float *dense_gate_scales, *dense_up_scales, *dense_down_scales;
    E4m3Rows codes, dense_codes;  // of x and dense_x: [rows, hidden]
    E4m3Target hidden_layer, dense_hidden_layer;
};

template <class Form>
struct __align__(1024) Ring {
    static constexpr int stages = Form::most_tokens <= 64 ? 5 : 4;
    std::uint8_t weight[stages][Form::boxes][box_bytes];
    std::uint8_t tokens[stages][Form::most_tokens * depth];
    float scales[stages][Form::most_tokens][scales_together];
    // Of a hidden layer: the largest magnitudes of a warp's 16 columns, two tokens a word, and what numbers
    // are multiplied by to become codes.
    std::uint32_t largest[4 * Form::warpgroups][Form::most_tokens / 2];
    float inverse[Form::warpgroups][Form::most_tokens];
    uint4 staged[4 * Form::warpgroups][32];  // of a warp, on the way to memory: 16 bytes of a row each
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// As copy_token_stages, with codes for numbers. scales: of token t, with what lies between it and token t +
// 64; null: none are copied.
template <int Rows, class Form>
__device__ __forceinline__ void copy_code_stages(Ring<Form>& s, Turn<Ring<Form>::stages>& turn,
                                                 const std::uint8_t* from, const std::uint32_t* at, int own,
                                                 const float* scales, std::int64_t other_scales, int ins,
                                                 int t, std::uint32_t offset) {
    const int column = t % 8 * 16;
#pragma unroll 1
    for (int k = 0; k < ins; k += depth) {
        barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
        const std::uint32_t to = shared_address(s.tokens[turn.stage]) + offset;
        const bool inside = k + column < ins;
        const std::uint8_t* here = inside ? from + k : from;
#pragma unroll
        for (int i = 0; i < Rows; ++i) copy16_async(to + i * 1024, here + at[i], inside && i < own);
        if (scales != nullptr && t < 8 * Rows) {
            const float* those = scales + k / (scales_together * depth) * scales_together;
            copy16_async(shared_address(s.scales[turn.stage][t]), those, true);
            if (Rows > token_copiers / 8) {
                copy16_async(shared_address(s.scales[turn.stage][t]) + token_copiers * scales_together * 4,
                             those + other_scales, true);
            }
        }
        barrier_arrive_after_copies(&s.full[turn.stage]);
        turn.next();
    }
}

// By `token_copiers` threads, t of them: 16 codes of every eighth token, and the scales of tokens t and t
// + 64.
template <class Form>
__device__ void copy_codes(const Problem& p, Ring<Form>& s, int t) {
    Turn<Ring<Form>::stages> turn;
    const int piece = t % 8, row0 = t / 8;
    const std::uint32_t offset = row0 * 128 + (piece ^ row0) * 16;
    static_assert(token_copiers == 64 && Form::most_tokens <= 2 * token_copiers);
    follow_items(p, s.items, [&](const Item& item) {
        if (item.down) wait_for_hidden_layer<Form>(p, s.items, item);
        const bool dense = item.group == 0;
        const E4m3Target& hidden = dense ? p.dense_hidden_layer : p.hidden_layer;
        const std::uint8_t* base = item.down ? hidden.codes : dense ? p.dense_codes.codes : p.codes.codes;
        std::uint32_t at[Form::most_tokens / 8];
        place_tokens<Form>(p, item, row0, at);
        const float* scales = nullptr;
        std::int64_t other_scales = 0;
        if (item.down) {
            const int row = min(t, item.tokens - 1), other = min(t + token_copiers, item.tokens - 1);
            scales = hidden.scales + (item.first + row) * hidden_scales(item.ins);
            other_scales = (other - row) * hidden_scales(item.ins);
        }
        by_need<Form>(item.tokens, [&](auto width) {
            copy_code_stages<decltype(width)::value / 8>(s, turn, base + piece * 16, at, own_rows(item, row0),
                                                         scales, other_scales, item.ins, t, offset);
        });
    });
    commit_copies();
    wait_copies<0>();
}

// The 128 columns of a box: four steps of the matrix instruction, a group of their own. a, b: words of
// descriptors (tile_descriptor_word).
template <int Tokens>
__device__ __forceinline__ void multiply_box(float (&part)[Tokens / 2], std::uint32_t a, std::uint32_t b) {
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < depth / 32; ++i)
        WarpgroupMultiplyE4m3<Tokens>::run(part, tile_descriptor_of(a + 2 * i), tile_descriptor_of(b + 2 * i),
                                           i > 0);
    warpgroup_commit();
}

// sum += part * the factor of each token, once all groups but the last `Left` are done. As many factors are
// fetched before that as there are registers for.
template <int Left, int Tokens, class Factor>
__device__ __forceinline__ void add_columns(float (&sum)[Tokens / 2], float (&part)[Tokens / 2],
                                            Factor factor) {
    constexpr int early = Tokens <= 64 ? Tokens / 4 : 4;
    float factors[early];
#pragma unroll
    for (int i = 0; i < early; ++i) factors[i] = factor(i);
    warpgroup_wait<Left>();
    hold(part);
#pragma unroll
    for (int i = 0; i < Tokens / 4; ++i) {
        const float f = i < early ? factors[i % early] : factor(i);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n = i / 2 * 4 + 2 * h + i % 2;
            sum[n] = fmaf(part[n], f, sum[n]);
        }
    }
}

// What the sums of rows lane / 4 and + 8 of a warp's 16 are multiplied by: weight rows from `row` of `outs`.
__device__ __forceinline__ void row_factors(const float* scales, int row, int outs, float (&factor)[2]) {
    const int own =
        row + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = own + 8 * h < outs ? scales[own + 8 * h] : 0.0f;
}

// Of the lanes of one pair of tokens, eight of them and `Step` apart, the larger magnitudes of the first
// `Left` words, of which the next is of the fourth pair on. They share the work: every lane comes out with a
// half, and a half of that, from `pair` on.
template <int Step, int Left, int Count>
__device__ __forceinline__ void larger_over_lanes(std::uint32_t (&top)[Count], int& pair) {
    if constexpr (Left == 1) {
        top[0] = larger_magnitudes(top[0], __shfl_xor_sync(0xFFFFFFFFu, top[0], Step));
    } else {
        const bool upper = (threadIdx.x & Step) != 0;
        pair += upper ? 2 * Left : 0;
#pragma unroll
        for (int j = 0; j < Left / 2; ++j) {
            const std::uint32_t other =
                __shfl_xor_sync(0xFFFFFFFFu, upper ? top[j] : top[j + Left / 2], Step);
            top[j] = larger_magnitudes(upper ? top[j + Left / 2] : top[j], other);
        }
    }
    if constexpr (Step < 16) larger_over_lanes<2 * Step, (Left + 1) / 2>(top, pair);
}

// A barrier of the warpgroups that make a tile of a hidden layer: both, or the first alone.
__device__ __forceinline__ void makers_barrier(int makers) {
    if (makers == 2) {
        both_warpgroups_barrier();
    } else {
        warpgroup_barrier(0);
    }
}

// A gate item's sums, scaled: the gated product in E4M3, with a scale for the tile's 128 columns. As in
// store_item, a thread holds columns lane / 4 (+ 8) of its warp's 16 for tokens 8 j + lane % 4 * 2 (+ 1). The
// codes of both its columns become one 16-bit number, so that one transposition of 8 x 8 brings it token 8 j
// + lane / 4, and there columns 2 c, 2 c + 8, 2 c + 1 and 2 c + 9, c = lane % 4.
template <int Tokens, class Form>
__device__ __forceinline__ void store_hidden_layer(const Problem& p, Ring<Form>& s, const Item& item,
                                                   int warpgroup, float (&gate)[Tokens / 2],
                                                   const float (&up)[Tokens / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int outs = width_of(p, item.group);
    // Both warpgroups of a tile make the columns of one scale, but for a last one that stands alone.
    static_assert(Form::warpgroups == 2 && Form::gate_rows == kE4m3HiddenColumns);
    const int makers = item.tile * Form::gate_rows + box_rows < outs ? 2 : 1;
    const E4m3Target& to = item.group == 0 ? p.dense_hidden_layer : p.hidden_layer;
    std::uint32_t
        both[Tokens / 4];  // of tokens 8 j + lane % 4 * 2 (+ 1), at 2 j and, of columns + 8, 2 j + 1
#pragma unroll
    for (int i = 0; i < Tokens / 4; ++i)
        both[i] = gated_pair(gate[2 * i], gate[2 * i + 1], up[2 * i], up[2 * i + 1]);

    // Of the warp's 16 columns.
    std::uint32_t top[Tokens / 8];
    int pair = lane % 4;  // of tokens
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) top[j] = larger_magnitudes(both[2 * j], both[2 * j + 1]);
    larger_over_lanes<4, Tokens / 8>(top, pair);
#pragma unroll
    for (int j = 0; j < (Tokens + 63) / 64; ++j) s.largest[4 * warpgroup + warp][pair + 4 * j] = top[j];
    makers_barrier(makers);
    // A thread of each for a token.
    if (const int token = static_cast<int>(threadIdx.x) % 128; token < Tokens) {
        std::uint32_t all = 0;
#pragma unroll
        for (int w = 0; w < 4 * Form::warpgroups; ++w) {
            if (w < 4 * makers) all = larger_magnitudes(all, s.largest[w][token / 2]);
        }
        const float scale = e4m3_scale(token % 2 == 0 ? lower_half(all) : upper_half(all));
        s.inverse[warpgroup][token] = 1.0f / scale;
        if (warpgroup == 0 && token < item.tokens)
            to.scales[(item.first + token) * hidden_scales(outs) + item.tile] = scale;
    }
    // What was read before is free from here on; what is read from here on is not written again before the
    // barrier that ends the item (multiply_items).
    makers_barrier(makers);
    uint4* staged = s.staged[4 * warpgroup + warp];
    const std::uint32_t place = shared_address(staged + lane);
    std::uint8_t* codes = to.codes + static_cast<std::int64_t>(item.first + lane) * outs +
                          (item.tile * Form::warpgroups + warpgroup) * box_rows + warp * 16;
#pragma unroll
    for (int j0 = 0; j0 < Tokens / 8; j0 += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int j = j0 + n < Tokens / 8 ? j0 + n : j0;
            const float2 inverse =
                *reinterpret_cast<const float2*>(&s.inverse[warpgroup][8 * j + lane % 4 * 2]);
            const std::uint32_t low = both[2 * j], high = both[2 * j + 1];
            words[n] = e4m3_pair(lower_half(low) * inverse.x, lower_half(high) * inverse.x) |
                       e4m3_pair(upper_half(low) * inverse.y, upper_half(high) * inverse.y) << 16;
        }
        store_transposed(place, words[0], words[1], words[2], words[3]);
        __syncwarp();
        const uint4 mixed = staged[lane];
        __syncwarp();
        if (8 * j0 + lane < item.tokens) {
            *reinterpret_cast<uint4*>(codes + static_cast<std::int64_t>(8 * j0) * outs) =
                make_uint4(__byte_perm(mixed.x, mixed.y, 0x6420), __byte_perm(mixed.z, mixed.w, 0x6420),
                           __byte_perm(mixed.x, mixed.y, 0x7531), __byte_perm(mixed.z, mixed.w, 0x7531));
        }
    }
}

// A down item's sums, scaled, of tokens and columns as in store_item, a token's 32 at a time: of every eight
// tokens four pieces of eight columns.
template <int Tokens, class Form>
__device__ __forceinline__ void store_outputs(const Problem& p, Ring<Form>& s, const Item& item,
                                              int warpgroup, const float (&low)[Tokens / 2],
                                              const float (&high)[Tokens / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    // Piece m of token r stands at m ^ r / 2 among its four, so that eight lanes meet all banks.
    uint4* staged = s.staged[4 * warpgroup + warp];
    const std::uint32_t place = shared_address(staged + lane % 8 * 4 + (lane / 8 ^ lane % 8 / 2));
    const uint4* from = staged + lane / 4 * 4 + (lane % 4 ^ lane / 8);
    const int column = (item.tile * Form::warpgroups + warpgroup) * 2 * box_rows + lane % 4 / 2 * box_rows +
                       warp * 16 + lane % 2 * 8;
    bf16* to = (item.group == 0 ? p.dense_y : p.y) +
               static_cast<std::int64_t>(item.first + lane / 4) * p.hidden + column;
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        store_transposed(place, pack2(low[4 * j], low[4 * j + 1]), pack2(low[4 * j + 2], low[4 * j + 3]),
                         pack2(high[4 * j], high[4 * j + 1]), pack2(high[4 * j + 2], high[4 * j + 3]));
        __syncwarp();
        const uint4 piece = *from;
        __syncwarp();
        if (8 * j + lane / 4 < item.tokens && column < p.hidden)
            *reinterpret_cast<uint4*>(to + static_cast<std::int64_t>(8 * j) * p.hidden) = piece;
    }
}

// One stage of a warpgroup's two boxes. factor(i): what its 128 columns of token 8 (i / 2) + lane % 4 * 2 + i
// % 2 count for. While the sums of one box are added up, the matrix unit works on the other box's; there are
// no registers for that with 128 tokens, where the other warpgroup must do.
template <int Tokens, int Parts, class Factor>
__device__ __forceinline__ void multiply_stage(std::uint32_t a, std::uint32_t b,
                                               float (&part)[Parts][Tokens / 2], float (&low)[Tokens / 2],
                                               float (&high)[Tokens / 2], Factor factor) {
    constexpr std::uint32_t other_box = box_bytes / 16;
    multiply_box<Tokens>(part[0], a, b);
    if (Parts == 2) multiply_box<Tokens>(part[Parts - 1], a + other_box, b);
    add_columns<Parts - 1, Tokens>(low, part[0], factor);
    if (Parts == 1) multiply_box<Tokens>(part[0], a + other_box, b);
    add_columns<0, Tokens>(high, part[Parts - 1], factor);
}

// The warpgroup's two boxes of an item times `Tokens` tokens.
template <int Tokens, class Form>
__device__ void multiply_item(const Problem& p, Ring<Form>& s, const Item& item, int warpgroup,
                              Turn<Ring<Form>::stages>& turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool dense = item.group == 0;
    constexpr int parts = Tokens <= 64 ? 2 : 1;
    // What sums are multiplied by at the end, fetched now.
    float f[2], g[2], token_scale[(Tokens + 31) / 32] = {};
    if (item.down) {
        const float* scales = dense ? p.dense_down_scales
                                    : p.down_scales + static_cast<std::int64_t>(item.group - 1) * p.hidden;
        const int row = (item.tile * Form::warpgroups + warpgroup) * 2 * box_rows;
        row_factors(scales, row, p.hidden, f);
        row_factors(scales, row + box_rows, p.hidden, g);
    } else {
        const float* scales =
            dense ? p.dense_gate_scales
                  : p.gate_up_scales + static_cast<std::int64_t>(item.group - 1) * 2 * p.width;
        const int row = (item.tile * Form::warpgroups + warpgroup) * box_rows, outs = width_of(p, item.group);
        row_factors(scales, row, outs, f);
        row_factors(dense ? p.dense_up_scales : scales + p.width, row, outs, g);
#pragma unroll
        for (int n = 0; n < (Tokens + 31) / 32; ++n) {
            int at = item.first + min(32 * n + lane, item.tokens - 1);
            if (!dense) at = __ldcg(p.row_at + at);
            token_scale[n] = __ldcg((dense ? p.dense_codes : p.codes).scales + at);
        }
    }
    float part[parts][Tokens / 2], low[Tokens / 2], high[Tokens / 2];
    // Zeros, so that registers of sums are taken up by one item after another.
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) {
        low[i] = high[i] = 0;
#pragma unroll
        for (int n = 0; n < parts; ++n) part[n][i] = 0;
    }
#pragma unroll 1
    for (int k = 0; k < item.ins; k += depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint32_t a =
            uniform(tile_descriptor_word(shared_address(s.weight[turn.stage][2 * warpgroup])));
        const std::uint32_t b = uniform(tile_descriptor_word(shared_address(s.tokens[turn.stage])));
        if (item.down) {
            const float* scales = s.scales[turn.stage][lane % 4 * 2] + k / depth % scales_together;
            multiply_stage<Tokens>(a, b, part, low, high,
                                   [&](int i) { return scales[(i / 2 * 8 + i % 2) * scales_together]; });
        } else {
            multiply_stage<Tokens>(a, b, part, low, high, [](int) { return 1.0f; });
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.empty[turn.stage]);
        turn.next();
    }
    if (item.down) {
#pragma unroll
        for (int i = 0; i < Tokens / 2; ++i) low[i] *= f[i % 4 / 2], high[i] *= g[i % 4 / 2];
        store_outputs<Tokens>(p, s, item, warpgroup, low, high);
        return;
    }
#pragma unroll
    for (int i = 0; i < Tokens / 4; ++i) {
        const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        const float scale = __shfl_sync(0xFFFFFFFFu, token_scale[i / 2 * 8 / 32], token % 32);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n = i / 2 * 4 + 2 * h + i % 2;
            low[n] = low[n] * scale * f[h], high[n] = high[n] * scale * g[h];
        }
    }
    store_hidden_layer<Tokens, Form>(p, s, item, warpgroup, low, high);
}

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
