// The tokens of an item of the experts' kernels (sm90_items.cuh): their copies, and what becomes of the sums.
#pragma once

#include "backend/cuda/gated.cuh"
#include "backend/cuda/sm90_items.cuh"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where this thread's tokens of an item begin, every eighth from row0 on, in elements; beyond the item's end
// its last one again, which of no tokens is the last of the piece before.
template <class Form>
__device__ __forceinline__ void place_tokens(const ItemsProblem& p, const Item& item, int row0,
                                             std::uint32_t (&at)[Form::most_tokens / 8]) {
#pragma unroll
    for (int i = 0; i < Form::most_tokens / 8; ++i) {
        int row = item.first + min(row0 + 8 * i, item.tokens - 1);
        if (!item.down && item.group > 0) row = __ldcg(p.row_at + row);
        at[i] = static_cast<std::uint32_t>(row) * static_cast<std::uint32_t>(item.ins);
    }
}

// How many of a thread's rows, every eighth from row0 on, an item has.
__device__ __forceinline__ int own_rows(const Item& item, int row0) { return (item.tokens - row0 + 7) / 8; }

// The tokens of an item to one stage after another, as `Rows` rows of eight for each thread, of which `own`
// are the item's. The others become zeros: it is the card's power that bounds its clocks, and to multiply
// zeros takes little of it. from: this thread's 16 bytes of the first column; at: how many elements on those
// of each row stand.
template <int Stages, int Rows, class Ring>
__device__ __forceinline__ void copy_token_stages(Ring& s, Turn<Stages>& turn, const bf16* from,
                                                  const std::uint32_t* at, int own, int ins, int column,
                                                  std::uint32_t offset) {
#pragma unroll 1
    for (int k = 0; k < ins; k += item_depth) {
        barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
        const std::uint32_t to = shared_address(s.tokens[turn.stage]) + offset;
        const bool inside = k + column < ins;
        const bf16* here = inside ? from + k : from;
#pragma unroll
        for (int i = 0; i < Rows; ++i) copy16_async(to + i * 1024, here + at[i], inside && i < own);
        barrier_arrive_after_copies(&s.full[turn.stage]);
        turn.next();
    }
}

// Until all of the hidden layer that a down item reads is written.
template <class Form>
__device__ __forceinline__ void wait_for_hidden_layer(const ItemsProblem& p, const ItemTables& s,
                                                      const Item& item) {
    // Only the block that takes the items has their tables.
    int rows;
    if constexpr (Form::blocks > 1) {
        rows = item.group == 0 ? p.dense_rows
                               : __ldcg(p.offsets + item.group) - __ldcg(p.offsets + item.group - 1);
    } else {
        rows = tokens_of(p, s, item.group);
    }
    const int written = pieces_of<Form>(rows) * over(width_of(p, item.group), box_rows);
    while (load_acquire(written_of(p, item.group)) < written) {
    }
}

// By `token_copiers` threads, t of them. Ring: tokens[stage], full[stage], empty[stage], items.
template <class Form, int Stages, class Ring>
__device__ void copy_tokens(const ItemsProblem& p, Ring& s, int t) {
    Turn<Stages> turn;
    const int piece = t % 8, row0 = t / 8;  // 16 bytes of every eighth token
    const std::uint32_t offset = row0 * 128 + (piece ^ row0) * 16;
    follow_items<Form::blocks>(p, s.items, [&](const Item& item) {
        if (item.down) wait_for_hidden_layer<Form>(p, s.items, item);
        const bf16* base =
            item.group == 0 ? (item.down ? p.dense_act : p.dense_x) : (item.down ? p.act : p.x);
        std::uint32_t at[Form::most_tokens / 8];
        place_tokens<Form>(p, item, row0, at);
        by_need<Form>(item.tokens, [&](auto width) {
            copy_token_stages<Stages, decltype(width)::value / 8>(
                s, turn, base + piece * 8, at, own_rows(item, row0), item.ins, piece * 8, offset);
        });
    });
    commit_copies();
    wait_copies<0>();
}

// Of `low` and `high`, the sums of a warpgroup's two boxes. A thread holds weight rows lane / 4 (+ 8) of its
// warp's 16 for tokens 8 j + lane % 4 * 2 (+ 1); transposed, token 8 j + lane / 4 for rows lane % 4 * 2 (+
// 1).
template <class Form, int Tokens>
__device__ __forceinline__ void store_item(const ItemsProblem& p, const Item& item, int warpgroup,
                                           const float (&low)[Tokens / 2], const float (&high)[Tokens / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int outs = item.down ? p.hidden : width_of(p, item.group);
    bf16* out = item.group == 0 ? (item.down ? p.dense_y : p.dense_act) : (item.down ? p.y : p.act);
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
        if (8 * j >= item.tokens) break;
        const int token = 8 * j + lane / 4;
        bf16* to = out + static_cast<std::int64_t>(item.first + token) * outs;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = 4 * j + 2 * h;
            const int row = warp * 16 + 8 * h + lane % 4 * 2;
            if (item.down) {
                const std::uint32_t a = transpose8(pack2(low[i], low[i + 1]));
                const std::uint32_t b = transpose8(pack2(high[i], high[i + 1]));
                const int column = (item.tile * Form::warpgroups + warpgroup) * 2 * box_rows + row;
                if (token < item.tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
                if (token < item.tokens && column + box_rows < outs)
                    *reinterpret_cast<std::uint32_t*>(to + column + box_rows) = b;
            } else {
                const std::uint32_t a = transpose8(gated_pair(low[i], low[i + 1], high[i], high[i + 1]));
                const int column = (item.tile * Form::warpgroups + warpgroup) * box_rows + row;
                if (token < item.tokens && column < outs) *reinterpret_cast<std::uint32_t*>(to + column) = a;
            }
        }
    }
}

// By every multiplying warp when it is through with a stage: tells all blocks that copy to it.
template <class Form>
__device__ __forceinline__ void release_stage(std::uint64_t* empty) {
    if constexpr (Form::blocks > 1) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (lane < Form::blocks) barrier_arrive_at(address_in(empty, lane));
    } else if (threadIdx.x % 32 == 0) {
        barrier_arrive(empty);
    }
}

// By the multiplying warpgroups: f(item, warpgroup, turn, has a part in it) for every item, and the word to
// others that a hidden layer was written.
template <class Form, int Stages, class Ring, class Multiply>
__device__ void multiply_items(const ItemsProblem& p, Ring& s, Multiply multiply) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    Turn<Stages> turn;
    follow_items<Form::blocks>(p, s.items, [&](const Item& item) {
        const int first_row = (item.tile * Form::warpgroups + warpgroup) * box_rows * (item.down ? 2 : 1);
        if (first_row >= (item.down ? p.hidden : width_of(p, item.group)) ||
            (Form::blocks > 1 && item.tokens == 0)) {
            // No part in it: lets the stages go by.
            for (int k = 0; k < item.ins; k += Form::depth) {
                barrier_wait(&s.full[turn.stage], turn.phase);
                release_stage<Form>(&s.empty[turn.stage]);
                turn.next();
            }
            return;
        }
        multiply(item, warpgroup, turn);
        if (!item.down) {
            // Other blocks read what was written here: the barrier hands it to the one thread that releases
            // it.
            warpgroup_barrier(warpgroup);
            if (threadIdx.x % 128 == 0) add_one_release(written_of(p, item.group));
        }
    });
}

#endif

}  // namespace dgemma::backend::cuda
