// What surrounds the products of the experts: sorting rows by expert, gathering them, and adding what comes
// back.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

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
