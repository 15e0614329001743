// Norms and the sums around them: one block per row, eight columns per thread, the row in registers.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

namespace {

constexpr int per_thread = 8;
constexpr std::int64_t most_columns = 1024 * per_thread;

// The columns of this thread; beyond the row's end nothing is read or written.
struct Columns {
    explicit __device__ Columns(int cols)
        : first(static_cast<int>(threadIdx.x) * per_thread), inside(first < cols) {}
    int first;
    bool inside;

    template <class T>
    __device__ void load(const T* row, float (&x)[8]) const {
        if (inside) {
            load8(row + first, x);
        } else {
#pragma unroll
            for (float& v : x) v = 0;
        }
    }
    template <class T>
    __device__ void store(T* row, const float (&x)[8]) const {
        if (inside) store8(row + first, x);
    }
};

// mean(x^2 + eps)^-1/2 of the row whose columns the threads hold.
__device__ float row_scale(const float (&x)[8], int cols, float eps, float* shared) {
    float sum = 0;
#pragma unroll
    for (const float v : x) sum += v * v;
    return 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(cols) + eps);
}

// x = rb(x * scale * weight); without a weight, rb(x * scale).
template <class T>
__device__ void normalise(float (&x)[8], float scale, const float* weight, const Columns& columns) {
    float w[8];
    if (weight != nullptr) columns.load(weight, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float y = x[i] * scale;
        x[i] = rounded<T>(weight == nullptr ? y : y * w[i]);
    }
}

template <class T>
__global__ void rms_norm_kernel(const T* x, const float* weight, int cols, float eps, T* out) {
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
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value;
}

// Threads of a block over rows of `cols` columns; 0, and a failure, where the rows do not fit.
unsigned row_threads(Context& c, std::int64_t cols) {
    if (c.failed()) return 0;
    if (cols % per_thread != 0 || cols > most_columns) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes a hidden size that is a multiple of 8 and at most "
               "8192: use the CPU for this model");
        return 0;
    }
    return static_cast<unsigned>((cols / per_thread + 31) / 32 * 32);
}

}  // namespace

void rms_norm(Context& c, Element type, const void* x, const float* weight, std::int64_t rows,
              std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        rms_norm_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const bf16*>(x), weight, width, eps,
                                                       static_cast<bf16*>(out));
    } else {
        rms_norm_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const float*>(x), weight, width, eps,
                                                       static_cast<float*>(out));
    }
    c.check(cudaGetLastError(), "a norm");
}

void add_then_norm(Context& c, Element type, const void* a, const void* b, std::int64_t rows,
                   std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        add_then_norm_kernel<<<n, threads, 0, c.stream()>>>(
            static_cast<const bf16*>(a), static_cast<const bf16*>(b), width, eps, static_cast<bf16*>(out));
    } else {
        add_then_norm_kernel<<<n, threads, 0, c.stream()>>>(
            static_cast<const float*>(a), static_cast<const float*>(b), width, eps, static_cast<float*>(out));
    }
    c.check(cudaGetLastError(), "a norm");
}

void norm_then_add(Context& c, Element type, const void* x, const float* weight, const void* residual,
                   std::int64_t rows, std::int64_t cols, float eps, void* out) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        norm_then_add_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const bf16*>(x), weight,
                                                            static_cast<const bf16*>(residual), width, eps,
                                                            static_cast<bf16*>(out));
    } else {
        norm_then_add_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const float*>(x), weight,
                                                            static_cast<const float*>(residual), width, eps,
                                                            static_cast<float*>(out));
    }
    c.check(cudaGetLastError(), "a norm");
}

void end_layer(Context& c, Element type, const LayerEndPointers& p, std::int64_t rows, std::int64_t cols,
               float eps) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    if (type == Element::bf16) {
        end_layer_kernel<bf16><<<n, threads, 0, c.stream()>>>(p, static_cast<int>(cols), eps);
    } else {
        end_layer_kernel<float><<<n, threads, 0, c.stream()>>>(p, static_cast<int>(cols), eps);
    }
    c.check(cudaGetLastError(), "the end of a layer");
}

void watch(Context& c, Element type, const void* x, std::int64_t rows, std::int64_t cols, std::int32_t stage,
           std::int32_t* marks) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        watch_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const bf16*>(x), width, stage, marks);
    } else {
        watch_kernel<<<n, threads, 0, c.stream()>>>(static_cast<const float*>(x), width, stage, marks);
    }
    c.check(cudaGetLastError(), "the watch for broken rows");
}

void fill(Context& c, std::int32_t* to, std::int64_t count, std::int32_t value) {
    if (c.failed() || count == 0) return;
    fill_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, c.stream()>>>(to, count, value);
    c.check(cudaGetLastError(), "filling memory");
}

}  // namespace dgemma::backend::cuda
