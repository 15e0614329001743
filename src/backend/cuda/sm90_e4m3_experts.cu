// All experts of a layer, and the dense MLP beside them, on Hopper with weights and activations in E4M3,
// which the matrix units read from shared memory as they are. The list of items is that of sm90_items.cuh.
//
// Memory sees what the bf16 kernel (sm90_experts.cu) shows it, byte for byte: a box of 64 rows has 128 codes
// of each where that one has 64 bf16. The tensor maps know no E4M3 and are told of half as many 16-bit
// numbers; a box that reaches beyond the end of k (704 and 2112 are no multiples of 128) is filled up with
// zeros, as the tokens are.
//
// The matrix unit keeps about 14 bits of a sum, so the sums of every 64 columns are added up in registers of
// f32. On the way they take the scale of those columns of the token, which the tokens of down items have: a
// warpgroup that made 64 columns of a hidden layer knows their largest number, nobody knows that of a whole
// row.
#include "backend/cuda/device.cuh"
#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_items.cuh"
#include "backend/cuda/sm90_wgmma_e4m3.cuh"
#include "base/e4m3_rows.h"

namespace dgemma::backend::cuda {

namespace {

using Form = ItemForm<2, 64, 128>;
constexpr int stages = 5;
constexpr int box_bytes = box_rows * Form::depth;
constexpr int early_steps =
    6;  // of weights that the second-level cache is asked for before the router is done
constexpr int scales_together = 4;  // of a token, that are copied at a time: 16 bytes
static_assert(kE4m3HiddenColumns == box_rows && Form::depth == 2 * box_rows);

struct Problem : ItemsProblem {
    CUtensorMap gate_up, down;                     // of all experts
    CUtensorMap dense_gate, dense_up, dense_down;  // where dense_rows > 0
    const float *gate_up_scales, *down_scales;     // of rows
    const float *dense_gate_scales, *dense_up_scales, *dense_down_scales;
    E4m3Rows codes, dense_codes;  // of x and dense_x: [rows, hidden]
    E4m3Target hidden_layer, dense_hidden_layer;
};

struct __align__(1024) Ring {
    std::uint8_t weight[stages][Form::boxes][box_bytes];
    std::uint8_t tokens[stages][Form::most_tokens * Form::depth];
    float scales[stages][Form::most_tokens][scales_together];
    float largest[Form::warpgroups][4][Form::most_tokens];  // of a warp's 16 columns of a hidden layer
    std::uint64_t full[stages], empty[stages];
    ItemTables items;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where box `box` of a stage begins, in the items of a tile.
struct Box {
    const CUtensorMap* map;  // null: there is no such box
    int row;
};
__device__ __forceinline__ Box box_of(const Problem& p, int group, int tile, bool down, int box) {
    const int expert = group - 1;
    if (down) {
        const int row = tile * Form::down_rows + box * box_rows;
        if (row >= p.hidden) return {nullptr, 0};
        return group == 0 ? Box{&p.dense_down, row} : Box{&p.down, expert * p.hidden + row};
    }
    const int row = tile * Form::gate_rows + box / 2 * box_rows;
    if (row >= width_of(p, group)) return {nullptr, 0};
    if (group == 0) return {box % 2 == 0 ? &p.dense_gate : &p.dense_up, row};
    return {&p.gate_up, expert * 2 * p.width + box % 2 * p.width + row};
}

__device__ void copy_weights(const Problem& p, Ring& s) {
    Turn<stages> turn;
    take_items<Form>(p, s.items, [&](const Item& item, auto tell_next) {
        const int lane = static_cast<int>(threadIdx.x);
        const int told = tell_next_at<Form, stages>(item);
        Box box{nullptr, 0};
        if (lane < Form::boxes) box = box_of(p, item.group, item.tile, item.down, lane);
        // Of whole boxes, also of one that is partly filled with zeros.
        const int all = __popc(__ballot_sync(0xFFFFFFFFu, box.map != nullptr)) * box_bytes;
#pragma unroll 1
        for (int k = 0; k < item.ins; k += Form::depth) {
            if (k == told) tell_next();
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            if (lane == 0) barrier_expect(&s.full[turn.stage], all);
            __syncwarp();
            if (box.map != nullptr)
                copy_box(s.weight[turn.stage][lane], *box.map, k / 2, box.row, &s.full[turn.stage],
                         keep_short);
            turn.next();
        }
    });
}

__device__ void ask_for_weights(const Problem& p) {
    int group = 0, tile = 0;
    if (!likely_first_item<Form>(p, group, tile)) return;
    for (int b = 0; b < Form::boxes; ++b) {
        const Box box = box_of(p, group, tile, false, b);
        if (box.map == nullptr) continue;
        for (int step = 0; step < early_steps && step * Form::depth < p.hidden; ++step)
            prefetch_box(*box.map, step * Form::depth / 2, box.row);
    }
}

// As copy_token_stages, with codes for numbers, and with the scales of a token where `scales` is not null.
template <int Rows>
__device__ __forceinline__ void copy_code_stages(Ring& s, Turn<stages>& turn, const std::uint8_t* from,
                                                 const std::uint32_t* at, const float* scales, int ins, int t,
                                                 std::uint32_t offset) {
    const int column = t % 8 * 16;
#pragma unroll 1
    for (int k = 0; k < ins; k += Form::depth) {
        barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
        const std::uint32_t to = shared_address(s.tokens[turn.stage]) + offset;
        const bool inside = k + column < ins;
        const std::uint8_t* here = inside ? from + k : from;
#pragma unroll
        for (int i = 0; i < Rows; ++i) copy16_async(to + i * 1024, here + at[i], inside);
        if (scales != nullptr && t < 8 * Rows) {
            copy16_async(shared_address(s.scales[turn.stage][t]),
                         scales + k / (scales_together * box_rows) * scales_together, true);
        }
        barrier_arrive_after_copies(&s.full[turn.stage]);
        turn.next();
    }
}

// By `token_copiers` threads, t of them: 16 codes of every eighth token, and the scales of token t.
__device__ void copy_codes(const Problem& p, Ring& s, int t) {
    Turn<stages> turn;
    const int piece = t % 8, row0 = t / 8;
    const std::uint32_t offset = row0 * 128 + (piece ^ row0) * 16;
    static_assert(token_copiers == Form::most_tokens);
    follow_items(p, s.items, [&](const Item& item) {
        if (item.down) wait_for_hidden_layer<Form>(p, s.items, item);
        const bool dense = item.group == 0;
        const E4m3Target& hidden = dense ? p.dense_hidden_layer : p.hidden_layer;
        const std::uint8_t* base = item.down ? hidden.codes : dense ? p.dense_codes.codes : p.codes.codes;
        std::uint32_t at[Form::most_tokens / 8];
#pragma unroll
        for (int i = 0; i < Form::most_tokens / 8; ++i) {
            int row = item.first + min(row0 + 8 * i, item.tokens - 1);
            if (!item.down && item.group > 0) row = p.row_at[row];
            at[i] = static_cast<std::uint32_t>(row) * static_cast<std::uint32_t>(item.ins);
        }
        const float* scales = nullptr;
        if (item.down) {
            const std::int64_t row = item.first + min(t, item.tokens - 1);
            scales = hidden.scales + row * hidden_scales(item.ins);
        }
        const auto copy = [&](auto rows) {
            copy_code_stages<decltype(rows)::value>(s, turn, base + piece * 16, at, scales, item.ins, t,
                                                    offset);
        };
        if (item.tokens <= 16) {
            copy(std::integral_constant<int, 2>());
        } else if (item.tokens <= 32) {
            copy(std::integral_constant<int, 4>());
        } else {
            copy(std::integral_constant<int, 8>());
        }
    });
    commit_copies();
    wait_copies<0>();
}

// The running 64 columns of a box: two steps of the matrix instruction, a group of their own.
template <int Tokens>
__device__ __forceinline__ void multiply_columns(float (&part)[Tokens / 2], std::uint64_t a,
                                                 std::uint64_t b) {
    warpgroup_begin();
    WarpgroupMultiplyE4m3<Tokens>::run(part, a, b, false);
    WarpgroupMultiplyE4m3<Tokens>::run(part, a + 2, b + 2, true);
    warpgroup_commit();
}

// sum += part * the factor of each token, once all groups but the last `Left` are done.
template <int Left, int Half, int Tokens>
__device__ __forceinline__ void add_columns(float (&sum)[Tokens / 2], float (&part)[Tokens / 2],
                                            const float2 (&factor)[Tokens / 4]) {
    warpgroup_wait<Left>();
    hold(part);
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) {
        const float2& f = factor[i / 4 * 2 + i % 2];
        sum[i] = fmaf(part[i], Half == 0 ? f.x : f.y, sum[i]);
    }
}

// What the sums of rows lane / 4 and + 8 of a warp's 16 are multiplied by: weight rows from `row` of `outs`.
__device__ __forceinline__ void row_factors(const float* scales, int row, int outs, float (&factor)[2]) {
    const int own =
        row + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = own + 8 * h < outs ? scales[own + 8 * h] : 0.0f;
}

// A gate item's sums, scaled: the gated product in E4M3, with a scale for the warpgroup's 64 columns. As in
// store_item, a thread holds columns lane / 4 (+ 8) of its warp's 16 for tokens 8 j + lane % 4 * 2 (+ 1). The
// codes of both its columns become one 16-bit number, so that one transposition of 8 x 8 brings it token 8 j
// + lane / 4, and there columns 2 c, 2 c + 8, 2 c + 1 and 2 c + 9, c = lane % 4.
template <int Tokens>
__device__ __forceinline__ void store_hidden_layer(const Problem& p, Ring& s, const Item& item, int warpgroup,
                                                   float (&gate)[Tokens / 2], const float (&up)[Tokens / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int outs = width_of(p, item.group), piece = item.tile * Form::warpgroups + warpgroup;
    const E4m3Target& to = item.group == 0 ? p.dense_hidden_layer : p.hidden_layer;
    auto& largest = s.largest[warpgroup];
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i)
        gate[i] = rounded<bf16>(rounded<bf16>(gelu(rounded<bf16>(gate[i]))) * rounded<bf16>(up[i]));
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        float top[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            top[c] = larger_magnitude(larger_magnitude(0, gate[4 * j + c]), gate[4 * j + 2 + c]);
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                top[c] = fmaxf(top[c], __shfl_xor_sync(0xFFFFFFFFu, top[c], step));
        }
        if (lane < 4)
            *reinterpret_cast<float2*>(&largest[warp][8 * j + 2 * lane]) = make_float2(top[0], top[1]);
    }
    // What was read here is not written again before the barrier that ends the item (multiply_items).
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + warpgroup) : "memory");
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        float inverse[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int token = 8 * j + lane % 4 * 2 + c;
            const float scale = e4m3_scale(fmaxf(fmaxf(largest[0][token], largest[1][token]),
                                                 fmaxf(largest[2][token], largest[3][token])));
            inverse[c] = 1.0f / scale;
            if (warp == 0 && lane < 4 && token < item.tokens)
                to.scales[(item.first + token) * hidden_scales(outs) + piece] = scale;
        }
        const std::uint32_t both =
            transpose8(e4m3_pair(gate[4 * j] * inverse[0], gate[4 * j + 2] * inverse[0]) |
                       e4m3_pair(gate[4 * j + 1] * inverse[1], gate[4 * j + 3] * inverse[1]) << 16);
        const std::uint32_t codes = __byte_perm(both, 0, 0x3120);
        const int token = 8 * j + lane / 4;
        if (token < item.tokens) {
            std::uint8_t* at = to.codes + static_cast<std::int64_t>(item.first + token) * outs +
                               piece * box_rows + warp * 16 + lane % 4 * 2;
            *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(codes);
            *reinterpret_cast<std::uint16_t*>(at + 8) = static_cast<std::uint16_t>(codes >> 16);
        }
    }
}

// The warpgroup's two boxes of an item times `Tokens` tokens. While the sums of one box's 64 columns are
// added up, the matrix unit works on the other box's.
template <int Tokens>
__device__ void multiply_item(const Problem& p, Ring& s, const Item& item, int warpgroup,
                              Turn<stages>& turn) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool dense = item.group == 0;
    float low_part[Tokens / 2], high_part[Tokens / 2], low[Tokens / 2], high[Tokens / 2];
    // Zeros, so that registers of sums are taken up by one item after another.
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) low_part[i] = high_part[i] = low[i] = high[i] = 0;
#pragma unroll 1
    for (int k = 0; k < item.ins; k += Form::depth) {
        barrier_wait(&s.full[turn.stage], turn.phase);
        fence_copy_engine();  // tokens came by ordinary copies
        const std::uint64_t a = tile_descriptor(s.weight[turn.stage][2 * warpgroup]);
        const std::uint64_t b = tile_descriptor(s.tokens[turn.stage]);
        multiply_columns<Tokens>(low_part, a, b);
        multiply_columns<Tokens>(high_part, a + box_bytes / 16, b);
        float2 factor[Tokens / 4];  // of token 8 (i / 2) + lane % 4 * 2 + i % 2, in the stage's halves
#pragma unroll
        for (int i = 0; i < Tokens / 4; ++i) {
            factor[i] = make_float2(1, 1);
            if (item.down) {
                const float* scale = s.scales[turn.stage][i / 2 * 8 + lane % 4 * 2 + i % 2];
                factor[i] = *reinterpret_cast<const float2*>(scale + k / Form::depth % 2 * 2);
                // Nobody wrote a scale for columns that there are not; their sums are zero.
                if (k + box_rows >= item.ins) factor[i].y = 0;
            }
        }
        add_columns<1, 0, Tokens>(low, low_part, factor);
        multiply_columns<Tokens>(low_part, a + 4, b + 4);
        add_columns<1, 0, Tokens>(high, high_part, factor);
        multiply_columns<Tokens>(high_part, a + box_bytes / 16 + 4, b + 4);
        add_columns<1, 1, Tokens>(low, low_part, factor);
        add_columns<0, 1, Tokens>(high, high_part, factor);
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.empty[turn.stage]);
        turn.next();
    }
    const int expert = dense ? 0 : item.group - 1;
    float f[2], g[2];
    if (item.down) {
        const float* scales =
            dense ? p.dense_down_scales : p.down_scales + static_cast<std::int64_t>(expert) * p.hidden;
        const int row = (item.tile * Form::warpgroups + warpgroup) * 2 * box_rows;
        row_factors(scales, row, p.hidden, f);
        row_factors(scales, row + box_rows, p.hidden, g);
#pragma unroll
        for (int i = 0; i < Tokens / 2; ++i) low[i] *= f[i % 4 / 2], high[i] *= g[i % 4 / 2];
        store_item<Form, Tokens>(p, item, warpgroup, low, high);
        return;
    }
    const float* gate_scales =
        dense ? p.dense_gate_scales : p.gate_up_scales + static_cast<std::int64_t>(expert) * 2 * p.width;
    const int row = (item.tile * Form::warpgroups + warpgroup) * box_rows, outs = width_of(p, item.group);
    row_factors(gate_scales, row, outs, f);
    row_factors(dense ? p.dense_up_scales : gate_scales + p.width, row, outs, g);
    const float* token_scales = dense ? p.dense_codes.scales : p.codes.scales;
#pragma unroll
    for (int i = 0; i < Tokens / 4; ++i) {
        int at = item.first + min(i / 2 * 8 + lane % 4 * 2 + i % 2, item.tokens - 1);
        if (!dense) at = p.row_at[at];
        const float scale = token_scales[at];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n = i / 2 * 4 + 2 * h + i % 2;
            low[n] = low[n] * scale * f[h], high[n] = high[n] * scale * g[h];
        }
    }
    store_hidden_layer<Tokens>(p, s, item, warpgroup, low, high);
}

#endif

__global__ void __launch_bounds__(Form::threads, 1)
    sm90_e4m3_experts_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t memory[];
    Ring& s = *reinterpret_cast<Ring*>(memory + padding_to_1024(memory));
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&s.full[i], 1 + token_copiers);      // the copier of weights and those of tokens
            barrier_init(&s.empty[i], 4 * Form::warpgroups);  // a lane of every multiplying warp
        }
        init_item_slots<Form>(s.items, 0);
        barrier_init_done();
        ask_for_weights(p);
    }
    begin_kernel();
    count_items<Form>(p, s.items);
    if (t >= 128) {
        take_registers<224>();
        multiply_items<Form, stages>(p, s, [&](const Item& item, int warpgroup, Turn<stages>& turn) {
            if (item.tokens <= 16) {
                multiply_item<16>(p, s, item, warpgroup, turn);
            } else if (item.tokens <= 32) {
                multiply_item<32>(p, s, item, warpgroup, turn);
            } else {
                multiply_item<64>(p, s, item, warpgroup, turn);
            }
        });
    } else {
        give_registers<64>();
        if (t < 32) {
            copy_weights(p, s);
        } else if (t >= 64) {
            copy_codes(p, s, t - 64);
        }
    }
#endif
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
    p.ready = places.ready;
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
    constexpr int bytes = static_cast<int>(sizeof(Ring)) + 1024;
    static_assert(bytes <= 232448);
    c.check(
        cudaFuncSetAttribute(sm90_e4m3_experts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "the experts");
    launch(c, "the experts", sm90_e4m3_experts_kernel, static_cast<unsigned>(c.multiprocessors()),
           Form::threads, bytes, p);
}

}  // namespace dgemma::backend::cuda
