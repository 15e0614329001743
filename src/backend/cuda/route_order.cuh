// The order of (row, choice) pairs by expert.
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int choose_threads = 256;  // eight rows
// Up to so many pairs the last block of the choice finds all places; more are worth a kernel of their own.
constexpr std::int64_t most_pairs_beside = 4096;
constexpr std::int64_t most_words_beside = 4096;
// Words of an expert's mask; 0: the choice leaves no masks, as they would be too many.
std::int64_t words_of(std::int64_t rows, std::int64_t experts) {
    const std::int64_t words = (rows + 127) / 128 * 4;
    return experts * words <= most_mask_words && words <= choose_threads ? words : 0;
}
bool sorts_beside(std::int64_t rows, std::int64_t k, std::int64_t experts) {
    return rows * k <= most_pairs_beside && experts * words_of(rows, experts) <= most_words_beside &&
           words_of(rows, experts) > 0;
}

// The sum of a whole warp's values up to and with that of its lane `lane`.
__device__ __forceinline__ int sum_up_to_lane(int value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xFFFFFFFFu, value, step);
        if (lane >= step) value += left;
    }
    return value;
}

// A stable counting sort by one block, for choices that are many or were made elsewhere. Each warp counts a
// run of consecutive pairs, so that the order within an expert is the order of the rows, whatever the timing.
// counts: [warps, experts] and [experts + 1], shared.
template <int Threads>
__device__ void sort_by_expert(const std::int32_t* ids, int pairs, int k, int experts, const Places& out,
                               int* counts) {
    constexpr int warps = Threads / 32;
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    int* starts = counts + warps * experts;
    for (int i = t; i < warps * experts; i += Threads) counts[i] = 0;
    __syncthreads();

    // --- how often each expert occurs in this warp's run, and each pair's place among those of its run. The
    // ids of up to `ahead` rounds are fetched before the first is looked at, and kept for the end.
    const int run = ((pairs + warps - 1) / warps + 31) / 32 * 32;
    const int begin = warp * run, end = min(pairs, begin + run);
    int* own = counts + warp * experts;
    constexpr int ahead = 8;
    int kept_id[ahead], kept_place[ahead];
    for (int first = begin; first < end; first += 32 * ahead) {
        int id[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const int pair = first + 32 * i + lane;
            id[i] = pair < end ? __ldcg(ids + pair) : -1;
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const bool inside = id[i] >= 0;
            const unsigned same = __match_any_sync(0xFFFFFFFFu, id[i]);
            const int before = __popc(same & ((1u << lane) - 1));
            const int seen = inside ? own[id[i]] : 0;
            const int place = seen + before;
            __syncwarp();
            if (inside && before == 0) own[id[i]] = seen + __popc(same);
            __syncwarp();
            if (run <= 32 * ahead) {
                kept_id[i] = id[i], kept_place[i] = place;
            } else if (inside) {
                out.place[first + 32 * i + lane] = place;
            }
        }
    }
    __syncthreads();

    // --- from counts of runs to the pairs of an expert in the runs before, and to where each expert begins
    int most = 0, used = 0;
    for (int e = t; e < experts; e += Threads) {
        int total = 0;
        for (int w = 0; w < warps; ++w) {
            const int here = counts[w * experts + e];
            counts[w * experts + e] = total;
            total += here;
        }
        starts[e] = total;
        most = max(most, total);
        used += total > 0;
    }
    atomicMax(out.facts + 1, most);
    __shared__ int all_used;
    if (t == 0) all_used = 0;
    __syncthreads();
    atomicAdd(&all_used, used);
    __syncthreads();
    if (warp == 0) {
        int sum = 0;
        for (int e0 = 0; e0 < experts; e0 += 32) {
            const int total = e0 + lane < experts ? starts[e0 + lane] : 0;
            const int through = sum_up_to_lane(total, lane);
            if (e0 + lane < experts) starts[e0 + lane] = out.offsets[e0 + lane] = sum + through - total;
            sum += __shfl_sync(0xFFFFFFFFu, through, 31);
        }
        if (lane == 0) {
            out.offsets[experts] = pairs;
            out.facts[0] = min(out.facts[0], all_used);
        }
    }
    for (int e = t; e < experts + 2; e += Threads) out.ready[e] = 0;
    __syncthreads();
    const auto finish = [&](int pair, int id, int place) {
        place += starts[id] + own[id];
        out.place[pair] = place;
        out.row_at[place] = pair / k;
    };
    if (run <= 32 * ahead) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const int pair = begin + 32 * i + lane;
            if (pair < end) finish(pair, kept_id[i], kept_place[i]);
        }
    } else {
        for (int pair = begin + lane; pair < end; pair += 32)
            finish(pair, __ldcg(ids + pair), out.place[pair]);
    }
}

// Whether this block is the last of its grid to come here: it then sees what the others did before. For all
// threads of a block.
__device__ __forceinline__ bool last_of_grid(const Places& places) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // Hands on what the whole block wrote, and takes over what others did.
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n"
                     : "=r"(before)
                     : "l"(places.tickets)
                     : "memory");
        last = before == static_cast<int>(gridDim.x) - 1;
    }
    __syncthreads();
    return last;
}

// The order of the pairs from the experts' rows as bits (`masks` [experts, words], zero again when this is
// over), by one block. shared: experts * (words + 1) words, then as many half words.
__device__ void place_by_masks(const std::int32_t* ids, int pairs, int k, int experts, int words,
                               const Places& out, int* shared) {
    const int t = static_cast<int>(threadIdx.x), lane = t % 32;
    auto* masks = reinterpret_cast<unsigned*>(shared);
    int* starts = shared + experts * words;
    auto* before = reinterpret_cast<std::uint16_t*>(starts + experts);
    constexpr int ahead = 8;
    int id[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
        id[i] = t + choose_threads * i < pairs ? __ldcg(ids + t + choose_threads * i) : 0;
    for (int i = t; i < experts * words; i += choose_threads) {
        masks[i] = __ldcg(out.masks + i);
        out.masks[i] = 0;
    }
    for (int e = t; e < experts + 2; e += choose_threads) out.ready[e] = 0;
    __syncthreads();
    for (int e = t; e < experts; e += choose_threads) {
        int seen = 0;
        for (int w = 0; w < words; ++w) {
            before[e * words + w] = static_cast<std::uint16_t>(seen);
            seen += __popc(masks[e * words + w]);
        }
        starts[e] = seen;
    }
    __syncthreads();
    if (t < 32) {
        int sum = 0, most = 0, used = 0;
        for (int e0 = 0; e0 < experts; e0 += 32) {
            const int total = e0 + lane < experts ? starts[e0 + lane] : 0;
            const int through = sum_up_to_lane(total, lane);
            if (e0 + lane < experts) starts[e0 + lane] = out.offsets[e0 + lane] = sum + through - total;
            sum += __shfl_sync(0xFFFFFFFFu, through, 31);
            most = max(most, total);
            used += __popc(__ballot_sync(0xFFFFFFFFu, total > 0));
        }
        most = __reduce_max_sync(0xFFFFFFFFu, most);
        if (lane == 0) {
            out.offsets[experts] = pairs;
            atomicMin(out.facts, used);  // and not read and written, which somebody would wait for
            atomicMax(out.facts + 1, most);
        }
    }
    __syncthreads();
    const auto finish = [&](int pair, int expert) {
        const int row = k == 8 ? pair / 8 : pair / k, word = expert * words + row / 32;
        const int place = starts[expert] + before[word] + __popc(masks[word] & ((1u << row % 32) - 1));
        out.place[pair] = place;
        out.row_at[place] = row;
    };
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
        if (t + choose_threads * i < pairs) finish(t + choose_threads * i, id[i]);
    }
    for (int pair = t + choose_threads * ahead; pair < pairs; pair += choose_threads)
        finish(pair, __ldcg(ids + pair));
}

// The same by a block for each expert, where there are many pairs. words: a multiple of four, at most 256.
__global__ void __launch_bounds__(choose_threads)
    place_pairs_kernel(const std::int32_t* ids, int k, int experts, int words, Places out) {
    allow_next_kernel();
    wait_for_previous_kernel();
    __shared__ int sums[choose_threads / 32 + 1];
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    const int expert = static_cast<int>(blockIdx.x);
    // --- how many pairs have a smaller expert
    int smaller = 0;
    const auto* quads = reinterpret_cast<const uint4*>(out.masks);
#pragma unroll 8
    for (int i = t; i < expert * words / 4; i += choose_threads) {
        const uint4 bits = __ldcg(quads + i);
        smaller += __popc(bits.x) + __popc(bits.y) + __popc(bits.z) + __popc(bits.w);
    }
    const unsigned own = t < words ? __ldcg(out.masks + expert * words + t) : 0;
    const auto sum_of_block = [&](int value) {  // and, in every thread, the sum up to and with its own
        const int through = sum_up_to_lane(value, lane);
        __syncthreads();
        if (lane == 31) sums[warp] = through;
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < choose_threads / 32; ++w) {
            if (w < warp) before += sums[w];
            all += sums[w];
        }
        return make_int2(before + through, all);
    };
    const int start = sum_of_block(smaller).y;
    const int2 counted = sum_of_block(__popc(own));
    // --- where this expert's rows stand
    int place = start + counted.x - __popc(own);
    const bool together = k == 8 && reinterpret_cast<std::uintptr_t>(ids) % 16 == 0;
    for (unsigned left = own; left != 0; left &= left - 1) {
        const int row = t * 32 + __ffs(static_cast<int>(left)) - 1;
        if (together) {  // not one after another
            const auto* fours = reinterpret_cast<const int4*>(ids) + 2 * row;
            const int4 a = __ldcg(fours), b = __ldcg(fours + 1);
            const int chosen[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (chosen[i] == expert) out.place[row * 8 + i] = place;
            }
        } else {
            for (int i = 0; i < k; ++i) {
                if (__ldcg(ids + row * k + i) == expert) out.place[row * k + i] = place;
            }
        }
        out.row_at[place++] = row;
    }
    if (t == 0) {
        out.offsets[expert] = start;
        if (expert == experts - 1) out.offsets[experts] = start + counted.y;
        atomicMax(out.facts + 1, counted.y);
    }
    // --- what the last block does: the ticket counts blocks, and above them experts with rows
    __shared__ int ticket;
    __syncthreads();
    if (t == 0) {
        const int added = 1 | (counted.y > 0 ? 1 << 16 : 0);
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;\n"
                     : "=r"(before)
                     : "l"(out.tickets), "r"(added)
                     : "memory");
        ticket = before + added;
    }
    __syncthreads();
    if ((ticket & 0xFFFF) != experts) return;
    for (int i = t; i < experts * words; i += choose_threads) out.masks[i] = 0;
    for (int i = t; i < experts + 2; i += choose_threads) out.ready[i] = 0;
    if (t == 0) {
        atomicMin(out.facts, ticket >> 16);
        *out.tickets = 0;
    }
}

}  // namespace

}  // namespace dgemma::backend::cuda
