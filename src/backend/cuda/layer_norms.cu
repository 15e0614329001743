// The norms and sums between attention and the branches of a layer, and from there to the next layer.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

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
    constexpr int ahead = 4;  // parts that are fetched before the first is added
    for (std::int64_t p = 0; p < a.parts; p += ahead) {
        float y[ahead][8];
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
#pragma unroll
            for (float& v : y[n]) v = 0;
            if (p + n < a.parts) columns.load(a.sums + (p + n) * part + row, y[n]);
        }
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] += y[n][i];
        }
    }
#pragma unroll
    for (float& v : x) v = rounded<T>(v);
}

// Codes: some go to E4M3, too. What kernels without it do costs them no register.
template <class T, bool Codes>
__global__ void after_attention_kernel(AfterAttentionPointers p, int cols, float eps) {
    begin_kernel();
    if (p.counter != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.counter = 0;
    __shared__ float shared[4][32];
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
    const auto write = [&](const float* weight, void* to, const E4m3Target& codes, float* room) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = h[i];
        normalise<T>(v, scale, weight, columns);
        columns.store(static_cast<T*>(to) + row, v);
        if (Codes && codes.codes != nullptr) quantise(v, cols, columns, codes, room);
    };
    write(p.dense_norm, p.dense, p.dense_codes, shared[2]);
    write(p.experts_norm, p.experts, p.experts_codes, shared[3]);
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
        // A sum of two bf16 rounded once is what an addition of bf16 gives.
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (__nv_bfloat162& pair : pairs) pair = __floats2bfloat162_rn(0, 0);
        uint4 y[Choices];
#pragma unroll
        for (int i = 0; i < Choices; ++i)
            y[i] = columns.load_bits(static_cast<const T*>(p.y) + static_cast<std::int64_t>(place[i]) * cols);
#pragma unroll
        for (int i = 0; i < Choices; ++i) {
            float values[8];
            unpack8(y[i], values);
            const float weight = weights[i];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                pairs[c] = __hadd2_rn(
                    pairs[c], __floats2bfloat162_rn(values[2 * c] * weight, values[2 * c + 1] * weight));
            }
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float2 both = __bfloat1622float2(pairs[c]);
            sum[2 * c] = both.x, sum[2 * c + 1] = both.y;
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
template <class T, int Choices, bool Codes>
__global__ void __launch_bounds__(Choices > 0 ? 352 : 1024, Choices > 0 ? 3 : 1)
    finish_layer_kernel(FinishLayerPointers p, int cols, float eps) {
    begin_kernel();
    __shared__ float shared[5][32];
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
    if (Codes && p.next_codes.codes != nullptr) quantise(h, cols, columns, p.next_codes, shared[4]);
}

}  // namespace

void after_attention(Context& c, Element type, const AfterAttentionPointers& p, std::int64_t rows,
                     std::int64_t cols, float eps) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    const auto run = [&](auto kernel) {
        launch(c, "the norms after attention", kernel, static_cast<unsigned>(rows), threads, 0, p,
               static_cast<int>(cols), eps);
    };
    if (type != Element::bf16) {
        run(after_attention_kernel<float, false>);
    } else if (p.dense_codes.codes != nullptr || p.experts_codes.codes != nullptr) {
        run(after_attention_kernel<bf16, true>);
    } else {
        run(after_attention_kernel<bf16, false>);
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
    const bool eight = p.k == 8 && threads <= 352;
    if (type != Element::bf16) {
        run(finish_layer_kernel<float, 0, false>);
    } else if (p.next_codes.codes != nullptr) {
        eight ? run(finish_layer_kernel<bf16, 8, true>) : run(finish_layer_kernel<bf16, 0, true>);
    } else {
        eight ? run(finish_layer_kernel<bf16, 8, false>) : run(finish_layer_kernel<bf16, 0, false>);
    }
}

}  // namespace dgemma::backend::cuda
