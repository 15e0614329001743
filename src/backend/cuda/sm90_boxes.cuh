// Weights of the experts and the dense MLP that come as boxes by the copy engine, rows as they are stored:
// which box an item wants, its copying, and the early word about the first ones. Of bf16, and of E4M3 as half
// as many 16-bit numbers: a box is 64 rows of 128 bytes either way.
#pragma once

#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_items.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int box_columns = 64;  // of a box, as the tensor maps count them
constexpr int box_bytes = box_rows * box_columns * 2;
// Of weights that the second-level cache is asked for before the router is done.
constexpr int early_steps = 3;

struct BoxesProblem : ItemsProblem {
    CUtensorMap gate_up, down;                     // of all experts
    CUtensorMap dense_gate, dense_up, dense_down;  // where dense_rows > 0
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where box `box` of a stage begins, in the items of a tile.
struct Box {
    const CUtensorMap* map;  // null: there is no such box
    int row;
};
template <class Form>
__device__ __forceinline__ Box box_of(const BoxesProblem& p, int group, int tile, bool down, int box) {
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

// By one warp. Ring: stages, weight[stage][box], full[stage], empty[stage], items. Of two blocks that have
// items together, each copies every other box to both.
template <class Form, class Ring>
__device__ void copy_weights(const BoxesProblem& p, Ring& s) {
    Turn<Ring::stages> turn;
    const auto copy_item = [&](const Item& item, auto tell_next) {
        const int lane = static_cast<int>(threadIdx.x);
        const int told = tell_next_at<Form, Ring::stages>(item);
        Box box{nullptr, 0};
        if (lane < Form::boxes) box = box_of<Form>(p, item.group, item.tile, item.down, lane);
        // Of whole boxes, also of one that is partly filled with zeros.
        const int all = __popc(__ballot_sync(0xFFFFFFFFu, box.map != nullptr)) * box_bytes;
        if (Form::blocks > 1 && lane % Form::blocks != block_of_item<Form>()) box.map = nullptr;
#pragma unroll 1
        for (int k = 0; k < item.ins; k += Form::depth) {
            if (k == told) tell_next();
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            if (lane == 0) barrier_expect(&s.full[turn.stage], all);
            __syncwarp();
            if (box.map != nullptr) {
                const int column = k / (Form::depth / box_columns);
                if constexpr (Form::blocks > 1) {
                    copy_box_at<true>((1 << Form::blocks) - 1, shared_address(s.weight[turn.stage][lane]),
                                      box.map, column, box.row, shared_address(&s.full[turn.stage]));
                } else {
                    copy_box(s.weight[turn.stage][lane], *box.map, column, box.row, &s.full[turn.stage]);
                }
            }
            turn.next();
        }
    };
    if constexpr (Form::blocks > 1) {
        if (block_of_item<Form>() > 0) {
            follow_items<Form::blocks>(p, s.items, [&](const Item& item) { copy_item(item, [] {}); });
            return;
        }
    }
    take_items<Form>(p, s.items, copy_item);
}

template <class Form>
__device__ void ask_for_weights(const BoxesProblem& p) {
    int group = 0, tile = 0;
    if (!likely_first_item<Form>(p, group, tile)) return;
    for (int b = block_of_item<Form>(); b < Form::boxes; b += Form::blocks) {
        const Box box = box_of<Form>(p, group, tile, false, b);
        if (box.map == nullptr) continue;
        for (int step = 0; step < early_steps && step * Form::depth < p.hidden; ++step)
            prefetch_box(*box.map, step * box_columns, box.row);
    }
}

#endif

}  // namespace

}  // namespace dgemma::backend::cuda
