// Norms and the sums around them: one block per row, eight columns per thread, the row in registers.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

template <class T>
__global__ void rms_norm_kernel(const T* x, const float* weight, int cols, float eps, T* out) {
    begin_kernel();
    __shared__ float shared[32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float v[8];
    columns.load(x + row, v);
    normalise<T>(v, row_scale(v, cols, eps, shared), weight, columns);
    columns.store(out + row, v);
}

template <class T>
__global__ void add_then_norm_kernel(const T* a, const T* b, int cols, float eps, T* out) {
    begin_kernel();
    __shared__ float shared[32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float v[8];
    columns.load(a + row, v);
    if (b != nullptr) {
        float w[8];
        columns.load(b + row, w);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = rounded<T>(v[i] + w[i]);
    }
    normalise<T>(v, row_scale(v, cols, eps, shared), nullptr, columns);
    columns.store(out + row, v);
}

template <class T>
__global__ void norm_then_add_kernel(const T* x, const float* weight, const T* residual, int cols, float eps,
                                     T* out) {
    begin_kernel();
    __shared__ float shared[32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float v[8], r[8];
    columns.load(x + row, v);
    columns.load(residual + row, r);
    normalise<T>(v, row_scale(v, cols, eps, shared), weight, columns);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = rounded<T>(r[i] + v[i]);
    columns.store(out + row, v);
}

template <class T>
__global__ void end_layer_kernel(LayerEndPointers p, int cols, float eps) {
    begin_kernel();
    __shared__ float shared[3][32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float d[8], m[8], h[8];
    columns.load(static_cast<const T*>(p.dense) + row, d);
    columns.load(static_cast<const T*>(p.sparse) + row, m);
    columns.load(static_cast<const T*>(p.residual) + row, h);
    normalise<T>(d, row_scale(d, cols, eps, shared[0]), p.dense_norm, columns);
    normalise<T>(m, row_scale(m, cols, eps, shared[1]), p.sparse_norm, columns);
#pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = rounded<T>(d[i] + m[i]);
    normalise<T>(d, row_scale(d, cols, eps, shared[2]), p.norm, columns);
    const float scalar = *p.scalar;
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = rounded<T>(rounded<T>(h[i] + d[i]) * scalar);
    columns.store(static_cast<T*>(p.out) + row, h);
}

template <class T>
__global__ void watch_kernel(const T* x, int cols, std::int32_t stage, std::int32_t* marks) {
    begin_kernel();
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float v[8];
    columns.load(x + row, v);
    bool broken = false;
#pragma unroll
    for (const float y : v) broken |= !isfinite(y);
    if (__syncthreads_or(broken) != 0 && threadIdx.x == 0 && marks[blockIdx.x] < 0) marks[blockIdx.x] = stage;
}

__global__ void fill_kernel(std::int32_t* to, std::int64_t count, std::int32_t value) {
    begin_kernel();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value;
}

}  // namespace

void rms_norm(Context& c, Element type, const void* x, const float* weight, std::int64_t rows,
              std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "a norm", rms_norm_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(x), weight, width,
               eps, static_cast<bf16*>(out));
    } else {
        launch(c, "a norm", rms_norm_kernel<float>, n, threads, 0, static_cast<const float*>(x), weight,
               width, eps, static_cast<float*>(out));
    }
}

void add_then_norm(Context& c, Element type, const void* a, const void* b, std::int64_t rows,
                   std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "a norm", add_then_norm_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(a),
               static_cast<const bf16*>(b), width, eps, static_cast<bf16*>(out));
    } else {
        launch(c, "a norm", add_then_norm_kernel<float>, n, threads, 0, static_cast<const float*>(a),
               static_cast<const float*>(b), width, eps, static_cast<float*>(out));
    }
}

void norm_then_add(Context& c, Element type, const void* x, const float* weight, const void* residual,
                   std::int64_t rows, std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "a norm", norm_then_add_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(x), weight,
               static_cast<const bf16*>(residual), width, eps, static_cast<bf16*>(out));
    } else {
        launch(c, "a norm", norm_then_add_kernel<float>, n, threads, 0, static_cast<const float*>(x), weight,
               static_cast<const float*>(residual), width, eps, static_cast<float*>(out));
    }
}

void end_layer(Context& c, Element type, const LayerEndPointers& p, std::int64_t rows, std::int64_t cols,
               float eps) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    if (type == Element::bf16) {
        launch(c, "the end of a layer", end_layer_kernel<bf16>, n, threads, 0, p, static_cast<int>(cols),
               eps);
    } else {
        launch(c, "the end of a layer", end_layer_kernel<float>, n, threads, 0, p, static_cast<int>(cols),
               eps);
    }
}

void watch(Context& c, Element type, const void* x, std::int64_t rows, std::int64_t cols, std::int32_t stage,
           std::int32_t* marks) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "the watch for broken rows", watch_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(x),
               width, stage, marks);
    } else {
        launch(c, "the watch for broken rows", watch_kernel<float>, n, threads, 0,
               static_cast<const float*>(x), width, stage, marks);
    }
}

void fill(Context& c, std::int32_t* to, std::int64_t count, std::int32_t value) {
    if (c.failed() || count == 0) return;
    launch(c, "filling memory", fill_kernel, static_cast<unsigned>((count + 255) / 256), 256, 0, to, count,
           value);
}

}  // namespace dgemma::backend::cuda
