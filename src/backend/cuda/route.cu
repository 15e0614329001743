// The router: its input, and the choice of experts.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_experts = 1024;
constexpr int most_chosen = 32;
constexpr int choose_threads = 256;  // eight rows
// Up to so many pairs the last block of the choice sorts them; more are worth a kernel with a larger block.
constexpr std::int64_t most_pairs_beside = 4096;

template <class T>
__global__ void router_input_kernel(const T* h, const float* scale, float input_scale, int cols, float eps,
                                    T* out) {
    begin_kernel();
    __shared__ float shared[32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const int first = static_cast<int>(threadIdx.x) * 8;
    float x[8] = {}, s[8];
    if (first < cols) load8(h + row + first, x);
    float sum = 0;
#pragma unroll
    for (const float v : x) sum += v * v;
    const float norm = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(cols) + eps);
    if (first >= cols) return;
    load8(scale + first, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded<T>(rounded<T>(x[i] * norm) * s[i]) * input_scale;
    store8(out + row + first, x);
}

// A stable counting sort by one block. Each warp counts a run of consecutive pairs, so that the order within
// an expert is the order of the rows, whatever the timing. counts: [warps, experts] and [experts + 1],
// shared.
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
            int through = total;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int left = __shfl_up_sync(0xFFFFFFFFu, through, step);
                if (lane >= step) through += left;
            }
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

// One warp per row. Lane l holds the experts 4 l to 4 l + 3 of each of `Quads` groups of 128.
template <class T, int Quads>
__device__ void choose(const float* sums, int parts, const float* per_expert_scale, int row, int rows,
                       int experts, int k, std::int32_t* ids, float* weights, float* probabilities) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto expert = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
    float p[4 * Quads];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) p[i] = 0;
    for (int part = 0; part < parts; ++part) {
        const float* from = sums + (static_cast<std::int64_t>(part) * rows + row) * experts;
#pragma unroll
        for (int q = 0; q < Quads; ++q) {
            if (experts % 4 == 0 && expert(4 * q) < experts) {
                const float4 x = *reinterpret_cast<const float4*>(from + expert(4 * q));
                p[4 * q] += x.x, p[4 * q + 1] += x.y, p[4 * q + 2] += x.z, p[4 * q + 3] += x.w;
            } else {
#pragma unroll
                for (int i = 4 * q; i < 4 * q + 4; ++i) {
                    if (expert(i) < experts) p[i] += from[expert(i)];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expert(i) < experts ? rounded<T>(p[i]) : -INFINITY;
        top = fmaxf(top, p[i]);
    }
    top = warp_max(top);
    float all = 0;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expf(p[i] - top);
        if (expert(i) < experts) all += p[i];
    }
    all = warp_sum(all);
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] /= all;
        if (probabilities != nullptr && expert(i) < experts)
            probabilities[static_cast<std::int64_t>(row) * experts + expert(i)] = p[i];
        // A broken row still gets k distinct experts: a NaN is never the largest, and what is taken is
        // smaller yet.
        if (!(p[i] >= 0)) p[i] = -1;
        if (expert(i) >= experts) p[i] = -3;
    }
    float chosen = 0, own_p = 0;
    int own_id = experts;
    for (int round = 0; round < k; ++round) {
        float best = -4;
        int best_id = 0x7FFFFFFF;
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (p[i] > best) best = p[i], best_id = expert(i);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
            const int other_id = __shfl_xor_sync(0xFFFFFFFFu, best_id, step);
            if (other > best || (other == best && other_id < best_id)) best = other, best_id = other_id;
        }
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (expert(i) == best_id) p[i] = -2;
        }
        chosen += best;  // from the largest down
        if (lane == round) own_id = best_id, own_p = best;
    }
    int place = 0;
    for (int other = 0; other < k; ++other) place += __shfl_sync(0xFFFFFFFFu, own_id, other) < own_id;
    if (lane < k) {
        const std::int64_t at = static_cast<std::int64_t>(row) * k + place;
        ids[at] = own_id;
        weights[at] = own_p / chosen * per_expert_scale[own_id];
    }
}

template <class T, int Quads>
__global__ void __launch_bounds__(choose_threads)
    choose_experts_kernel(const float* sums, int parts, const float* per_expert_scale, int rows, int experts,
                          int k, std::int32_t* ids, float* weights, float* probabilities, Places places,
                          bool sort) {
    extern __shared__ int counts[];
    __shared__ bool last;
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row < rows)
        choose<T, Quads>(sums, parts, per_expert_scale, row, rows, experts, k, ids, weights, probabilities);
    if (!sort) return;
    // The block that is through last finds everybody's choices and sorts them.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(places.tickets, 1) == static_cast<int>(gridDim.x) - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    sort_by_expert<choose_threads>(ids, rows * k, k, experts, places, counts);
    if (threadIdx.x == 0) *places.tickets = 0;
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    sort_pairs_kernel(const std::int32_t* ids, int pairs, int k, int experts, Places places) {
    extern __shared__ int counts[];
    begin_kernel();
    sort_by_expert<Threads>(ids, pairs, k, experts, places, counts);
}

}  // namespace

void sort_pairs(Context& c, const std::int32_t* ids, std::int64_t rows, std::int64_t k, std::int64_t experts,
                const Places& places) {
    if (c.failed() || rows == 0) return;
    if (experts > most_experts) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts: use the CPU for this model");
        return;
    }
    const auto run = [&](auto kernel, unsigned threads) {
        const std::size_t bytes = static_cast<std::size_t>((threads / 32 + 1) * experts) * sizeof(int);
        launch(c, "sorting rows by expert", kernel, 1, threads, bytes, ids, static_cast<int>(rows * k),
               static_cast<int>(k), static_cast<int>(experts), places);
    };
    // A large block's counts have to fit the shared memory that needs no asking.
    const bool large = experts <= 256 && rows * k > most_pairs_beside;
    large ? run(sort_pairs_kernel<1024>, 1024) : run(sort_pairs_kernel<choose_threads>, choose_threads);
}

void router_input(Context& c, Element type, const void* h, const float* scale, float input_scale,
                  std::int64_t rows, std::int64_t cols, float eps, void* out) {
    if (c.failed() || rows == 0) return;
    if (cols % 8 != 0 || cols > 8192) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes a hidden size that is a multiple of 8 and at most "
               "8192: use the CPU for this model");
        return;
    }
    const auto threads = static_cast<unsigned>((cols / 8 + 31) / 32 * 32);
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "the router", router_input_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(h), scale,
               input_scale, width, eps, static_cast<bf16*>(out));
    } else {
        launch(c, "the router", router_input_kernel<float>, n, threads, 0, static_cast<const float*>(h),
               scale, input_scale, width, eps, static_cast<float*>(out));
    }
}

void choose_experts(Context& c, Element type, const float* sums, std::int64_t parts,
                    const float* per_expert_scale, std::int64_t rows, std::int64_t experts, std::int64_t k,
                    std::int32_t* ids, float* weights, float* probabilities, const Places& places) {
    if (c.failed() || rows == 0) return;
    if (experts > most_experts || k > most_chosen) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts and 32 of them per token: use the CPU for this "
               "model");
        return;
    }
    constexpr int rows_of_block = choose_threads / 32;
    const auto blocks = static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block);
    const std::size_t bytes = static_cast<std::size_t>((rows_of_block + 1) * experts) * sizeof(int);
    const auto run = [&](auto kernel) {
        launch(c, "the router", kernel, blocks, choose_threads, bytes, sums, static_cast<int>(parts),
               per_expert_scale, static_cast<int>(rows), static_cast<int>(experts), static_cast<int>(k), ids,
               weights, probabilities, places, rows * k <= most_pairs_beside);
    };
    if (type == Element::bf16) {
        experts <= 128   ? run(choose_experts_kernel<bf16, 1>)
        : experts <= 256 ? run(choose_experts_kernel<bf16, 2>)
                         : run(choose_experts_kernel<bf16, 8>);
    } else {
        experts <= 128   ? run(choose_experts_kernel<float, 1>)
        : experts <= 256 ? run(choose_experts_kernel<float, 2>)
                         : run(choose_experts_kernel<float, 8>);
    }
    if (rows * k > most_pairs_beside) sort_pairs(c, ids, rows, k, experts, places);
}

}  // namespace dgemma::backend::cuda
