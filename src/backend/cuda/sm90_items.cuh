// What the kernels of the experts share: the list of items that a persistent grid works off. What they do
// with an item's tokens is in sm90_item_tokens.cuh.
//
// Weights are the 64-high side of the matrix instruction and tokens its other side, 16 to 160 of them by
// need: at one canvas an expert has about 16. The dense MLP is one more expert whom every row visits. A
// warpgroup has two boxes of 64 weight rows at a time. Items come expert after expert: first tiles of 64 gate
// and 64 up rows a warpgroup, whose gated product goes to memory; then tiles of 128 rows a warpgroup of the
// down projection. A block takes the next item that nobody has taken, and copies its weights while it still
// multiplies the ones before; only the tokens of a down tile wait until all of its expert's hidden layer is
// written. An item earlier in the list never waits for a later one, so the list always ends. Which block
// computes an item changes no bit of it, nor do the warpgroups and tokens that share it.
//
// Where there are many tokens, pairs of blocks take items together: each has a piece of the tokens and copies
// half of the weights to both, which spares the second-level cache. The first block of a pair takes the items
// and tells both.
#pragma once

#include <type_traits>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"
#include "backend/cuda/sm90_cluster.cuh"

namespace dgemma::backend::cuda {

constexpr int item_depth = 64;     // of one stage in k, of bf16
constexpr int box_rows = 64;       // of weights
constexpr int token_copiers = 64;  // threads
constexpr int most_groups = 1025;  // the dense MLP and the experts
constexpr int item_slots = 4;      // items that the copier of weights may be ahead

// What a kernel has in hand at a time. Even: items of many tokens are cut into pieces as good as alike, of
// multiples of 16, for which the kernel has products of every such width; else whole ones come first, and
// widths are doubled from the fewest to the most. Blocks: 2 where they take items in pairs, of even pieces.
template <int Warpgroups, int MostTokens, int Depth = item_depth, int FewestTokens = 16, bool Even = false,
          int Blocks = 1>
struct ItemForm {
    static_assert(Blocks == 1 || (Blocks == 2 && Even && FewestTokens == 16));
    static constexpr int warpgroups = Warpgroups;  // that multiply; one more copies
    static constexpr int threads = 128 + 128 * Warpgroups;
    static constexpr int boxes = 2 * Warpgroups;  // of one stage: gate, up, gate, up, ...; or of down
    static constexpr int gate_rows = box_rows * Warpgroups, down_rows = 2 * gate_rows;  // of a tile
    static constexpr int most_tokens = MostTokens;                                      // of a block
    static constexpr int fewest_tokens = FewestTokens;                                  // of a product
    static constexpr int depth = Depth;                                                 // of one stage in k
    static constexpr bool even = Even;
    static constexpr int blocks = Blocks;  // that have an item together
};

// Whether those of a block who multiply get the registers they ask for, each thread, once the 128 that copy
// have given theirs. A launch hands out what its bounds allow, in eights a thread; whoever takes more than is
// left waits forever.
constexpr bool registers_suffice(int threads, int copier, int multiplier) {
    return 128 * copier + (threads - 128) * multiplier <= (1 << 16) / threads / 8 * 8 * threads;
}

struct ItemsProblem {
    const bf16 *x, *dense_x;      // [rows, hidden]
    const std::int32_t* row_at;   // [pairs]: the row of a place
    const std::int32_t* offsets;  // [experts + 1]: the places of an expert
    std::int32_t* ready;          // [1 + experts]: parts of hidden layers written; [1]: items taken
    std::int32_t* dense_ready;    // [1]: of the dense MLP's; often the first of `ready`
    bf16 *act, *dense_act;        // [pairs, width], [rows, dense_width]
    bf16 *y, *dense_y;            // [pairs, hidden], [rows, hidden]
    int experts, hidden, width, dense_rows, dense_width;
    // Whether the router, the kernel before, let this one begin when all before the router was over: then the
    // first items of the dense MLP, which needs nothing of the router, are worked off beside it.
    bool dense_beside_router;
};

struct ItemTables {
    int offsets[most_groups + 1];     // places of a group: the dense MLP's rows, then the experts'
    int gate_items[most_groups + 1];  // items of the groups before
    int down_items[most_groups + 1];
    int4 taken[item_slots];  // of an Item: group (-1: the list is over), 2 * tile + down, first, tokens
    std::uint64_t full[item_slots], empty[item_slots];
};

// Who counts what of a hidden layer, and whether the dense MLP may begin beside the router.
inline void set_counters(const Context& c, const Places& places, ItemsProblem& p) {
    p.ready = places.ready;
    p.dense_ready = places.dense_ready != nullptr ? places.dense_ready : places.ready;
    p.dense_beside_router = places.dense_ready != nullptr && places.router == c.kernels();
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a block works on at a time. Group 0 is the dense MLP, group 1 + e expert e.
struct Item {
    int group, tile, first, tokens;  // first: place within the group's rows of x, act and y
    bool down;
    int ins;
};

__device__ __forceinline__ int width_of(const ItemsProblem& p, int group) {
    return group == 0 ? p.dense_width : p.width;
}
// Counts the parts of its hidden layer that were written.
__device__ __forceinline__ std::int32_t* written_of(const ItemsProblem& p, int group) {
    return group == 0 ? p.dense_ready : p.ready + group;
}
__device__ __forceinline__ int tokens_of(const ItemsProblem& p, const ItemTables& s, int group) {
    return group == 0 ? p.dense_rows : s.offsets[group + 1] - s.offsets[group];
}

// The items that a group's rows make for a tile, each of so many tokens a block and the last of what is left.
struct Cut {
    int items, tokens;
};
template <class Form>
__device__ __forceinline__ Cut cut_of(int rows) {
    if constexpr (Form::blocks > 1) {
        if (rows <= 0) return {0, 0};
        const int most = over(rows, Form::blocks * Form::most_tokens);
        const int each = over(over(rows, Form::blocks * most), 16) * 16;
        return {over(rows, Form::blocks * each), each};
    }
    const int items = over(rows, Form::most_tokens);
    if (!Form::even || items <= 1) return {items, Form::most_tokens};
    const int tokens = over(over(rows, items), 16) * 16;
    return {over(rows, tokens), tokens};
}

// From `first` of a group's rows on, where an item of a tile begins, to where block `block` begins of those
// that have it together; and how many tokens a block has at most. The blocks of the last item share what is
// left: the second of them may have nothing.
template <class Form>
__device__ __forceinline__ int piece_of(const Cut& cut, int rows, int block, int& first) {
    if constexpr (Form::blocks > 1) {
        const int each = min(cut.tokens, over(over(rows - first, Form::blocks), 16) * 16);
        first = min(rows, first + block * each);
        return each;
    }
    return cut.tokens;
}
// Pieces that have rows.
template <class Form>
__device__ __forceinline__ int pieces_of(int rows) {
    const Cut cut = cut_of<Form>(rows);
    if constexpr (Form::blocks > 1) {
        int second = (cut.items - 1) * Form::blocks * cut.tokens;
        piece_of<Form>(cut, rows, 1, second);
        return Form::blocks * cut.items - (second == rows ? 1 : 0);
    }
    return cut.items;
}
// The number of this block among those that have items together, and of these among the grid's.
template <class Form>
__device__ __forceinline__ int block_of_item() {
    return Form::blocks > 1 ? cluster_rank() : 0;
}
template <class Form>
__device__ __forceinline__ int first_item() {
    return static_cast<int>(blockIdx.x) / Form::blocks;
}

// f(std::integral_constant<int, width>()) with the narrowest product for so many tokens.
template <class Form, int Width = Form::fewest_tokens, class Do>
__device__ __forceinline__ void by_need(int tokens, Do f) {
    if constexpr (Width >= Form::most_tokens) {
        f(std::integral_constant<int, Form::most_tokens>());
    } else if (tokens <= Width) {
        f(std::integral_constant<int, Width>());
    } else {
        by_need<Form, Form::even ? Width + 16 : 2 * Width>(tokens, f);
    }
}

// The place in a ring of one of those who go round it.
template <int Stages>
struct Turn {
    int stage = 0, phase = 0;
    __device__ void next() {
        if (++stage == Stages) stage = 0, phase ^= 1;
    }
};

// By the warp that takes the items, once the router is done; the others see the tables as they see the items.
template <class Form>
__device__ void count_items(const ItemsProblem& p, ItemTables& s) {
    const int groups = 1 + p.experts, lane = static_cast<int>(threadIdx.x) % 32;
    // The dense MLP's rows are no places of the sort; its two bounds are not used.
    if (p.experts > 0) {
#pragma unroll 1
        for (int e = lane; e <= p.experts; e += 32)
            copy4_async(shared_address(&s.offsets[1 + e]), p.offsets + e);
        commit_copies();
        wait_copies<0>();
    }
    __syncwarp();
    const int gate_tiles = over(p.width, Form::gate_rows), down_tiles = over(p.hidden, Form::down_rows);
    int gates = 0, downs = 0;
    for (int g0 = 0; g0 < groups; g0 += 32) {
        const int group = g0 + lane;
        const int blocks = group < groups ? cut_of<Form>(tokens_of(p, s, group)).items : 0;
        const int own_gates = blocks * (group == 0 ? over(p.dense_width, Form::gate_rows) : gate_tiles);
        const int own_downs = blocks * down_tiles;
        int gate = own_gates, down = own_downs;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int gate_left = __shfl_up_sync(0xFFFFFFFFu, gate, step);
            const int down_left = __shfl_up_sync(0xFFFFFFFFu, down, step);
            if (lane >= step) gate += gate_left, down += down_left;
        }
        if (group < groups) {
            s.gate_items[group] = gates + gate - own_gates;
            s.down_items[group] = downs + down - own_downs;
        }
        gates += __shfl_sync(0xFFFFFFFFu, gate, 31);
        downs += __shfl_sync(0xFFFFFFFFu, down, 31);
    }
    if (lane == 0) s.gate_items[groups] = gates, s.down_items[groups] = downs;
    __syncwarp();
}

// By one thread, before anybody takes or follows items.
// others: warps that follow besides those that copy tokens and those that multiply.
template <class Form>
__device__ void init_item_slots(ItemTables& s, int others) {
    for (int i = 0; i < item_slots; ++i) {
        barrier_init(&s.full[i], 1);
        // A lane of each; those of all blocks tell the one that takes the items.
        barrier_init(&s.empty[i], others + Form::blocks * (token_copiers / 32 + 4 * Form::warpgroups));
    }
}

// Item `i` of the list, as block `block` has it; `item` is an earlier one, or all zeros.
template <class Form>
__device__ void locate(const ItemsProblem& p, const ItemTables& s, int i, int block, Item& item) {
    const int gate_items = s.gate_items[1 + p.experts];
    if (!item.down && i >= gate_items) item.down = true, item.group = 0;
    const int* before = item.down ? s.down_items : s.gate_items;
    const int at = item.down ? i - gate_items : i;
    while (at >= before[item.group + 1]) ++item.group;
    const int rows = tokens_of(p, s, item.group), inside = at - before[item.group];
    const Cut cut = cut_of<Form>(rows);
    int skip = inside % cut.items * (Form::blocks * cut.tokens);
    const int most = piece_of<Form>(cut, rows, block, skip);
    item.tile = inside / cut.items;
    item.first = (item.group == 0 ? 0 : s.offsets[item.group]) + skip;
    item.tokens = min(most, rows - skip);
    item.ins = item.down ? width_of(p, item.group) : p.hidden;
}

// The first gate items are the dense MLP's, whatever the router says.
template <class Form>
__device__ __forceinline__ int dense_gate_items(const ItemsProblem& p) {
    return cut_of<Form>(p.dense_rows).items * over(p.dense_width, Form::gate_rows);
}
template <class Form>
__device__ __forceinline__ Item dense_gate_item(const ItemsProblem& p, int i, int block) {
    const Cut cut = cut_of<Form>(p.dense_rows);
    int skip = i % cut.items * (Form::blocks * cut.tokens);
    const int most = piece_of<Form>(cut, p.dense_rows, block, skip);
    return {0, i / cut.items, skip, min(most, p.dense_rows - skip), false, p.hidden};
}

// By the warp that copies weights, of the first of the blocks that have items together: takes items and tells
// the others; lanes know the tokens of one block or another, which that warp has no use for. Every lane has a
// box, since the instructions around a copy take one thread longer than the copy itself. Nobody else of the
// block waits for the kernel before: what they read of it they read after they were told an item that needs
// it, and past the first-level cache, which may have what stood there in the layer before.
template <class Form, class Each>
__device__ void take_items(const ItemsProblem& p, ItemTables& s, Each each) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int items = -1;  // in the list; not known before the router is done
    Item item{};     // the one that was told last; no group: the list is over
    Turn<item_slots> turn;
    const auto count = [&] {
        wait_for_previous_kernel();
        count_items<Form>(p, s);
        items = s.gate_items[1 + p.experts] + s.down_items[1 + p.experts];
    };
    const auto take = [&] { return lane == 0 ? atomicAdd(p.ready + 1 + p.experts, 1) : 0; };
    const auto tell = [&](int i) {
        const int block = Form::blocks > 1 ? lane % Form::blocks : 0;
        if (items < 0) {
            item = dense_gate_item<Form>(p, i, block);
        } else if (i < items) {
            locate<Form>(p, s, i, block, item);
        } else {
            item.group = -1;
        }
        if constexpr (Form::blocks > 1) {
            if (lane < Form::blocks) {
                barrier_acquire(&s.empty[turn.stage], turn.phase ^ 1);
                store_at(address_in(&s.taken[turn.stage], block),
                         make_int4(item.group, 2 * item.tile + (item.down ? 1 : 0), item.first, item.tokens));
                barrier_release_at(address_in(&s.full[turn.stage], block));
            }
        } else if (lane == 0) {
            barrier_wait(&s.empty[turn.stage], turn.phase ^ 1);
            s.taken[turn.stage] =
                make_int4(item.group, 2 * item.tile + (item.down ? 1 : 0), item.first, item.tokens);
            barrier_arrive(&s.full[turn.stage]);
        }
        __syncwarp();
        turn.next();
    };
    const int first = first_item<Form>();
    if (!p.dense_beside_router || first >= dense_gate_items<Form>(p)) count();
    tell(first);
    while (item.group >= 0) {
        int ticket = items < 0 ? 0 : take();
        each(Item(item), [&] {
            if (items < 0) {
                count();
                ticket = take();
            }
            tell(static_cast<int>(gridDim.x) / Form::blocks + __shfl_sync(0xFFFFFFFFu, ticket, 0));
        });
    }
}
// At which k of its own copies the copier of weights tells what comes after an item: late, so that the blocks
// end together, but as much before the end as lets the tokens' copies begin without a pause.
template <class Form, int Stages>
__device__ __forceinline__ int tell_next_at(const Item& item) {
    return max(0, (item.ins - 1) / Form::depth - Stages) * Form::depth;
}

// By whole warps: the items that were taken, in the same order. Blocks: that have them together.
template <int Blocks = 1, class Each>
__device__ void follow_items(const ItemsProblem& p, ItemTables& s, Each each) {
    Turn<item_slots> turn;
    for (;;) {
        if constexpr (Blocks > 1) {
            barrier_acquire(&s.full[turn.stage], turn.phase);
        } else {
            barrier_wait(&s.full[turn.stage], turn.phase);
        }
        const int4 taken = s.taken[turn.stage];
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if constexpr (Blocks > 1) {
                barrier_arrive_at(address_in(&s.empty[turn.stage], 0));
            } else {
                barrier_arrive(&s.empty[turn.stage]);
            }
        }
        turn.next();
        if (taken.x < 0) return;
        Item item{taken.x, taken.y / 2, taken.z, taken.w, taken.y % 2 != 0, p.hidden};
        if (item.down) item.ins = width_of(p, item.group);
        each(item);
    }
}

// What the early word about weights is worth: the first item of this block, if every expert has some rows.
template <class Form>
__device__ __forceinline__ bool likely_first_item(const ItemsProblem& p, int& group, int& tile) {
    const int item = first_item<Form>(), dense_items = dense_gate_items<Form>(p);
    if (item < dense_items) {
        group = 0;
        tile = dense_gate_item<Form>(p, item, 0).tile;
        return true;
    }
    const int tiles = over(p.width, Form::gate_rows);
    if (tiles == 0) return false;
    group = 1 + (item - dense_items) / tiles;
    tile = (item - dense_items) % tiles;
    return group <= p.experts;
}

#endif

}  // namespace dgemma::backend::cuda
