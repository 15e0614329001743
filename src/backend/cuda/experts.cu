// What surrounds the products of the experts: sorting rows by expert, gathering them, and adding what comes
// back.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_experts = 1024;
constexpr int sort_threads = 1024;

// A stable counting sort in one block. Each warp counts for a few experts, so that the order within an expert
// is the order of the rows, whatever the timing.
__global__ void __launch_bounds__(sort_threads)
    sort_by_expert_kernel(const std::int32_t* ids, int pairs, int k, int experts, Places out) {
    __shared__ int counts[most_experts + 1];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const unsigned before = (1u << lane) - 1;
    for (int first = warp; first < experts; first += 4 * 32) {
        int count[4] = {};
        for (int at = 0; at < pairs; at += 32) {
            const int id = at + lane < pairs ? ids[at + lane] : -1;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned mine = __ballot_sync(0xFFFFFFFFu, id == first + 32 * j);
                if (id == first + 32 * j) out.place[at + lane] = count[j] + __popc(mine & before);
                count[j] += __popc(mine);
            }
        }
        if (lane == 0) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (first + 32 * j < experts) counts[first + 32 * j] = count[j];
            }
        }
    }
    __syncthreads();
    if (warp == 0) {
        int sum = 0, used = 0, most = 0;
        for (int e0 = 0; e0 < experts; e0 += 32) {
            const int own = e0 + lane < experts ? counts[e0 + lane] : 0;
            used += __popc(__ballot_sync(0xFFFFFFFFu, own > 0));
            most = max(most, own);
            int through = own;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int left = __shfl_up_sync(0xFFFFFFFFu, through, step);
                if (lane >= step) through += left;
            }
            if (e0 + lane < experts) counts[e0 + lane] = sum + through - own;
            sum += __shfl_sync(0xFFFFFFFFu, through, 31);
        }
        most = __reduce_max_sync(0xFFFFFFFFu, most);
        if (lane == 0) {
            counts[experts] = sum;
            out.facts[0] = min(out.facts[0], used);
            out.facts[1] = max(out.facts[1], most);
        }
    }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e <= experts; e += sort_threads) {
        out.offsets[e] = counts[e];
        if (e < experts) out.ready[e] = 0;
    }
    for (int at = static_cast<int>(threadIdx.x); at < pairs; at += sort_threads) {
        const int place = out.place[at] + counts[ids[at]];
        out.place[at] = place;
        out.row_at[place] = at / k;
    }
}

// One warp per place.
template <class T>
__global__ void gather_rows_kernel(const T* x, const std::int32_t* row_at, std::int64_t count, int cols,
                                   T* out) {
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
    sort_by_expert_kernel<<<1, sort_threads, 0, c.stream()>>>(
        ids, static_cast<int>(rows * k), static_cast<int>(k), static_cast<int>(experts), places);
    c.check(cudaGetLastError(), "sorting rows by expert");
}

void gather_rows(Context& c, Element type, const void* x, const std::int32_t* row_at, std::int64_t count,
                 std::int64_t cols, void* out) {
    if (c.failed() || count == 0) return;
    const auto blocks = static_cast<unsigned>((count + 3) / 4);
    if (type == Element::bf16) {
        gather_rows_kernel<<<blocks, 128, 0, c.stream()>>>(static_cast<const bf16*>(x), row_at, count,
                                                           static_cast<int>(cols), static_cast<bf16*>(out));
    } else {
        gather_rows_kernel<<<blocks, 128, 0, c.stream()>>>(static_cast<const float*>(x), row_at, count,
                                                           static_cast<int>(cols), static_cast<float*>(out));
    }
    c.check(cudaGetLastError(), "gathering rows");
}

void combine_experts(Context& c, Element type, const void* y, const std::int32_t* place, const float* weights,
                     std::int64_t rows, std::int64_t k, std::int64_t cols, void* out) {
    if (c.failed() || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(512, (cols / 8 + 31) / 32 * 32));
    if (type == Element::bf16) {
        combine_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const bf16*>(y), place, weights,
                                                      static_cast<int>(k), static_cast<int>(cols),
                                                      static_cast<bf16*>(out));
    } else {
        combine_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const float*>(y), place, weights,
                                                      static_cast<int>(k), static_cast<int>(cols),
                                                      static_cast<float*>(out));
    }
    c.check(cudaGetLastError(), "adding the experts");
}

}  // namespace dgemma::backend::cuda
