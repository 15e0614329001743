// Norms and the sums around them: one block per row, eight columns per thread, the row in registers.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

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
    // Eight bf16 as they are.
    [[nodiscard]] __device__ uint4 load_bits(const bf16* row) const {
        return inside ? *reinterpret_cast<const uint4*>(row + first) : uint4{};
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

// The columns of a matrix that may still be sums over parts.
template <class T>
__device__ void load_addends(const Addends& a, const Columns& columns, int cols, float (&x)[8]) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    if (a.parts == 0) {
        columns.load(static_cast<const T*>(a.rounded) + row, x);
        return;
    }
#pragma unroll
    for (float& v : x) v = 0;
    const std::int64_t part = static_cast<std::int64_t>(gridDim.x) * cols;
    for (std::int64_t p = 0; p < a.parts; ++p) {
        float y[8];
        columns.load(a.sums + p * part + row, y);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] += y[i];
    }
#pragma unroll
    for (float& v : x) v = rounded<T>(v);
}

template <class T>
__global__ void after_attention_kernel(AfterAttentionPointers p, int cols, float eps) {
    begin_kernel();
    __shared__ float shared[2][32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float v[8], h[8];
    columns.load(static_cast<const T*>(p.h) + row, h);
    load_addends<T>(p.branch, columns, cols, v);
    normalise<T>(v, row_scale(v, cols, eps, shared[0]), p.norm, columns);
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = rounded<T>(h[i] + v[i]);
    columns.store(static_cast<T*>(p.h) + row, h);
    const float scale = row_scale(h, cols, eps, shared[1]);
    const auto write = [&](const float* weight, void* to) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = h[i];
        normalise<T>(v, scale, weight, columns);
        columns.store(static_cast<T*>(to) + row, v);
    };
    write(p.dense_norm, p.dense);
    write(p.experts_norm, p.experts);
    if (p.router_in == nullptr) return;
    float s[8];
    columns.load(p.router_scale, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = rounded<T>(rounded<T>(h[i] * scale) * s[i]) * p.router_input_scale;
    columns.store(static_cast<T*>(p.router_in) + row, v);
}

// The sum of a row's experts in order of their ids. Choices: how many there are, if that is known; all are
// then fetched before the first is added.
template <class T, int Choices>
__device__ void add_choices(const FinishLayerPointers& p, const Columns& columns, int cols, float (&sum)[8]) {
    const std::int32_t* place = p.place + static_cast<std::int64_t>(blockIdx.x) * p.k;
    const float* weights = p.weights + static_cast<std::int64_t>(blockIdx.x) * p.k;
    const auto add = [&](const float(&y)[8], float weight) {
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] = rounded<T>(sum[c] + rounded<T>(y[c] * weight));
    };
    const auto fetch = [&](std::int64_t i, float(&y)[8]) {
        columns.load(static_cast<const T*>(p.y) + static_cast<std::int64_t>(place[i]) * cols, y);
    };
#pragma unroll
    for (float& v : sum) v = 0;
    if constexpr (Choices > 0) {
        uint4 y[Choices];
#pragma unroll
        for (int i = 0; i < Choices; ++i)
            y[i] = columns.load_bits(static_cast<const T*>(p.y) + static_cast<std::int64_t>(place[i]) * cols);
#pragma unroll
        for (int i = 0; i < Choices; ++i) {
            float values[8];
            unpack8(y[i], values);
            add(values, weights[i]);
        }
    } else {
        for (std::int64_t i = 0; i < p.k; ++i) {
            float y[8];
            fetch(i, y);
            add(y, weights[i]);
        }
    }
}

// Two blocks to a multiprocessor: then one round of them has all rows of a canvas.
template <class T, int Choices>
__global__ void __launch_bounds__(Choices > 0 ? 352 : 1024, Choices > 0 ? 2 : 1)
    finish_layer_kernel(FinishLayerPointers p, int cols, float eps) {
    begin_kernel();
    __shared__ float shared[4][32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    float d[8], m[8], h[8];
    load_addends<T>(p.dense, columns, cols, d);
    columns.load(static_cast<const T*>(p.residual) + row, h);
    if (p.sparse != nullptr) {
        columns.load(static_cast<const T*>(p.sparse) + row, m);
    } else {
        add_choices<T, Choices>(p, columns, cols, m);
    }
    normalise<T>(d, row_scale(d, cols, eps, shared[0]), p.dense_norm, columns);
    normalise<T>(m, row_scale(m, cols, eps, shared[1]), p.sparse_norm, columns);
#pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = rounded<T>(d[i] + m[i]);
    normalise<T>(d, row_scale(d, cols, eps, shared[2]), p.norm, columns);
    const float scalar = *p.scalar;
    bool broken = false;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        h[i] = rounded<T>(rounded<T>(h[i] + d[i]) * scalar);
        broken |= !isfinite(h[i]);
    }
    columns.store(static_cast<T*>(p.out) + row, h);
    if (__syncthreads_or(broken) != 0 && threadIdx.x == 0 && p.marks[blockIdx.x] < 0)
        p.marks[blockIdx.x] = p.stage;
    if (p.next_norm == nullptr) return;
    normalise<T>(h, row_scale(h, cols, eps, shared[3]), p.next_norm, columns);
    columns.store(static_cast<T*>(p.next) + row, h);
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

void after_attention(Context& c, Element type, const AfterAttentionPointers& p, std::int64_t rows,
                     std::int64_t cols, float eps) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    if (type == Element::bf16) {
        launch(c, "the norms after attention", after_attention_kernel<bf16>, n, threads, 0, p,
               static_cast<int>(cols), eps);
    } else {
        launch(c, "the norms after attention", after_attention_kernel<float>, n, threads, 0, p,
               static_cast<int>(cols), eps);
    }
}

void finish_layer(Context& c, Element type, const FinishLayerPointers& p, std::int64_t rows,
                  std::int64_t cols, float eps) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto run = [&](auto kernel) {
        launch(c, "the end of a layer", kernel, static_cast<unsigned>(rows), threads, 0, p,
               static_cast<int>(cols), eps);
    };
    if (type == Element::bf16) {
        p.k == 8 && threads <= 352 ? run(finish_layer_kernel<bf16, 8>) : run(finish_layer_kernel<bf16, 0>);
    } else {
        run(finish_layer_kernel<float, 0>);
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
