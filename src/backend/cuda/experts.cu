// What surrounds the products of the experts: sorting rows by expert, gathering them, and adding what comes
// back.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_experts = 1024;
constexpr int sort_threads = 1024;
constexpr int sort_warps = sort_threads / 32;

// A stable counting sort in one block. Each warp counts a run of consecutive pairs, so that the order within
// an expert is the order of the rows, whatever the timing. counts: [sort_warps, experts].
__global__ void __launch_bounds__(sort_threads)
    sort_by_expert_kernel(const std::int32_t* ids, int pairs, int k, int experts, Places out) {
    begin_kernel();
    extern __shared__ int counts[];
    __shared__ int starts[most_experts + 1];
    __shared__ int sums[sort_warps];
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    for (int i = t; i < sort_warps * experts; i += sort_threads) counts[i] = 0;
    __syncthreads();

    // --- how often each expert occurs in this warp's run, and each pair's place among those of its run
    const int run = ((pairs + sort_warps - 1) / sort_warps + 31) / 32 * 32;
    const int begin = warp * run, end = min(pairs, begin + run);
    int* own = counts + warp * experts;
    for (int first = begin; first < end; first += 32) {
        const bool inside = first + lane < end;
        const int id = inside ? ids[first + lane] : -1;
        const unsigned same = __match_any_sync(0xFFFFFFFFu, id);
        const int before = __popc(same & ((1u << lane) - 1));
        const int seen = inside ? own[id] : 0;
        if (inside) out.place[first + lane] = seen + before;
        __syncwarp();
        if (inside && before == 0) own[id] = seen + __popc(same);
        __syncwarp();
    }
    __syncthreads();

    // --- from counts of runs to the pairs of an expert in the runs before, and to where each expert begins
    int total = 0;
    if (t < experts) {
        for (int w = 0; w < sort_warps; ++w) {
            const int here = counts[w * experts + t];
            counts[w * experts + t] = total;
            total += here;
        }
    }
    int through = total;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xFFFFFFFFu, through, step);
        if (lane >= step) through += left;
    }
    if (lane == 31) sums[warp] = through;
    const int used = __syncthreads_count(total > 0);
    int before_warp = 0;
    for (int w = 0; w < warp; ++w) before_warp += sums[w];
    if (t < experts) {
        starts[t] = before_warp + through - total;
        out.offsets[t] = starts[t];
        out.ready[t] = 0;
        atomicMax(out.facts + 1, total);
    }
    if (t == 0) {
        out.offsets[experts] = pairs;
        out.facts[0] = min(out.facts[0], used);
    }
    __syncthreads();
    for (int first = begin; first < end; first += 32) {
        if (first + lane >= end) continue;
        const int id = ids[first + lane];
        const int place = starts[id] + own[id] + out.place[first + lane];
        out.place[first + lane] = place;
        out.row_at[place] = (first + lane) / k;
    }
}

// One warp per place.
template <class T>
__global__ void gather_rows_kernel(const T* x, const std::int32_t* row_at, std::int64_t count, int cols,
                                   T* out) {
    begin_kernel();
    const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (place >= count) return;
    constexpr int in_16_bytes = 16 / sizeof(T);
    const auto* from = reinterpret_cast<const uint4*>(x + static_cast<std::int64_t>(row_at[place]) * cols);
    auto* to = reinterpret_cast<uint4*>(out + place * cols);
    for (int i = static_cast<int>(threadIdx.x) % 32; i < cols / in_16_bytes; i += 32) to[i] = from[i];
}

template <class T>
__global__ void combine_kernel(const T* y, const std::int32_t* place, const float* weights, int k, int cols,
                               T* out) {
    begin_kernel();
    const std::int64_t row = blockIdx.x;
    for (int first = static_cast<int>(threadIdx.x) * 8; first < cols;
         first += static_cast<int>(blockDim.x) * 8) {
        float sum[8] = {};
        for (int i = 0; i < k; ++i) {
            float x[8];
            load8(y + static_cast<std::int64_t>(place[row * k + i]) * cols + first, x);
            const float weight = weights[row * k + i];
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] = rounded<T>(sum[c] + rounded<T>(x[c] * weight));
        }
        store8(out + row * cols + first, sum);
    }
}

}  // namespace

void sort_by_expert(Context& c, const std::int32_t* ids, std::int64_t rows, std::int64_t k,
                    std::int64_t experts, const Places& places) {
    if (c.failed()) return;
    if (experts > most_experts) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts: use the CPU for this model");
        return;
    }
    const int bytes = sort_warps * static_cast<int>(experts) * 4;
    c.check(cudaFuncSetAttribute(sort_by_expert_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "sorting rows by expert");
    if (c.failed()) return;
    launch(c, "sorting rows by expert", sort_by_expert_kernel, 1, sort_threads,
           static_cast<std::size_t>(bytes), ids, static_cast<int>(rows * k), static_cast<int>(k),
           static_cast<int>(experts), places);
}

void gather_rows(Context& c, Element type, const void* x, const std::int32_t* row_at, std::int64_t count,
                 std::int64_t cols, void* out) {
    if (c.failed() || count == 0) return;
    const auto blocks = static_cast<unsigned>((count + 3) / 4);
    if (type == Element::bf16) {
        launch(c, "gathering rows", gather_rows_kernel<bf16>, blocks, 128, 0, static_cast<const bf16*>(x),
               row_at, count, static_cast<int>(cols), static_cast<bf16*>(out));
    } else {
        launch(c, "gathering rows", gather_rows_kernel<float>, blocks, 128, 0, static_cast<const float*>(x),
               row_at, count, static_cast<int>(cols), static_cast<float*>(out));
    }
}

void combine_experts(Context& c, Element type, const void* y, const std::int32_t* place, const float* weights,
                     std::int64_t rows, std::int64_t k, std::int64_t cols, void* out) {
    if (c.failed() || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(512, (cols / 8 + 31) / 32 * 32));
    if (type == Element::bf16) {
        launch(c, "adding the experts", combine_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(y),
               place, weights, static_cast<int>(k), static_cast<int>(cols), static_cast<bf16*>(out));
    } else {
        launch(c, "adding the experts", combine_kernel<float>, n, threads, 0, static_cast<const float*>(y),
               place, weights, static_cast<int>(k), static_cast<int>(cols), static_cast<float*>(out));
    }
}

}  // namespace dgemma::backend::cuda
