// The norms and sums between attention and the branches of a layer, and from there to the next layer.
#include <type_traits>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

// Threads of a block for which there are kernels that leave a multiprocessor room for three of them.
constexpr unsigned usual_threads = 352;

// The columns of a matrix that may still be sums over parts.
template <class T>
__device__ __forceinline__ void load_addends(const Addends& a, const Columns& columns, int cols,
                                             Eight<T>& to) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    if (a.parts == 0) {
        to.fetch(static_cast<const T*>(a.rounded) + row, columns);
        return;
    }
    float x[8] = {};
    const std::int64_t part = static_cast<std::int64_t>(gridDim.x) * cols;
    const float* from = a.sums + row;
    constexpr int ahead = 4;  // parts that are fetched before the first is added
    for (int left = static_cast<int>(a.parts); left > 0; left -= ahead) {
        float y[ahead][8];
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
#pragma unroll
            for (float& v : y[n]) v = 0;
            if (n < left) columns.load(from, y[n]);
            from += part;
        }
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] += y[n][i];
        }
    }
    to.round(x);
}

// Codes: some go to E4M3, too. What kernels without it do costs them no register.
// Usual: no more than the usual threads.
template <class T, bool Codes, bool Usual>
__global__ void __launch_bounds__(Usual ? usual_threads : 1024, Usual ? 3 : 1)
    after_attention_kernel(AfterAttentionPointers p, int cols, float eps) {
    begin_kernel();
    if (p.counter != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.counter = 0;
    __shared__ float shared[4][32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    Eight<T> stream, branch;
    stream.fetch(static_cast<const T*>(p.h) + row, columns);
    load_addends(p.branch, columns, cols, branch);
    float v[8], h[8], w[8], experts_norm[8];
    load_weight(p.norm, columns, w);
    branch.unpack(v);
    scale8(v, row_scale(v, cols, eps, shared[0]), w);
    branch.round(v);
    stream.add(branch);
    stream.store(static_cast<T*>(p.h) + row, columns);
    stream.unpack(h);
    // All are on their way while the threads wait for one another.
    load_weight(p.dense_norm, columns, w);
    load_weight(p.experts_norm, columns, experts_norm);
    float router_scale[8];
    if (p.router_in != nullptr) columns.load(p.router_scale, router_scale);
    const float scale = row_scale(h, cols, eps, shared[1]);
    const auto write = [&](const float(&weight)[8], void* to, const E4m3Target& codes, float* room) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = h[i];
        scale8(v, scale, weight);
        Eight<T> out;
        out.round(v);
        out.store(static_cast<T*>(to) + row, columns);
        if (!Codes || codes.codes == nullptr) return;
        out.unpack(v);
        quantise(v, cols, columns, codes, room);
    };
    write(w, p.dense, p.dense_codes, shared[2]);
    write(experts_norm, p.experts, p.experts_codes, shared[3]);
    if (p.router_in == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = h[i] * scale;
    round8<T>(v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= router_scale[i];
    round8<T>(v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= p.router_input_scale;
    columns.store(static_cast<T*>(p.router_in) + row, v);
}

// A number of each of a row's eight experts, each in four lanes of a warp.
template <class X>
__device__ __forceinline__ X spread_choices(const X* all) {
    return all[static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x % 8];
}

// The sum of a row's eight experts in order of their ids; all are fetched before the first is added. place
// and weight: of this lane's expert.
__device__ __forceinline__ void add_eight_choices(const void* rows, std::int32_t place, float weight,
                                                  const Columns& columns, int cols, Eight<bf16>& sum) {
    constexpr unsigned all = 0xFFFFFFFFu;
    const unsigned pieces = static_cast<unsigned>(cols) / 8;  // of a row; 32 bits count those of all rows
    Eight<bf16> y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned at = static_cast<unsigned>(__shfl_sync(all, place, i)) * pieces + threadIdx.x;
        y[i].bits = columns.inside ? static_cast<const uint4*>(rows)[at] : uint4{};
    }
    sum.bits = uint4{};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float w = __shfl_sync(all, weight, i);
        float values[8];
        y[i].unpack(values);
#pragma unroll
        for (float& v : values) v *= w;
        y[i].round(values);
        sum.add(y[i]);
    }
}

// The same for any number of experts.
template <class T>
__device__ void add_any_choices(const FinishLayerPointers& p, const Columns& columns, int cols,
                                Eight<T>& sum) {
    const std::int32_t* place = p.place + static_cast<std::int64_t>(blockIdx.x) * p.k;
    const float* weights = p.weights + static_cast<std::int64_t>(blockIdx.x) * p.k;
    float x[8] = {};
    for (std::int64_t i = 0; i < p.k; ++i) {
        float y[8];
        columns.load(static_cast<const T*>(p.y) + static_cast<std::int64_t>(place[i]) * cols, y);
#pragma unroll
        for (int c = 0; c < 8; ++c) x[c] = rounded<T>(x[c] + rounded<T>(y[c] * weights[i]));
    }
    sum.round(x);
}

// Usual: no more than the usual threads, and a row has the sums of eight experts to add. Codes: as above.
template <class T, bool Codes, bool Usual>
__global__ void __launch_bounds__(Usual ? usual_threads : 1024, Usual ? 3 : 1)
    finish_layer_kernel(FinishLayerPointers p, int cols, float eps) {
    begin_kernel();
    __shared__ float shared[5][32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const Columns columns(cols);
    Eight<T> dense, sparse, stream;
    if constexpr (Usual) {
        const std::int32_t place = spread_choices(p.place);
        const float weight = spread_choices(p.weights);
        load_addends(p.dense, columns, cols, dense);
        add_eight_choices(p.y, place, weight, columns, cols, sparse);
    } else {
        load_addends(p.dense, columns, cols, dense);
        if (p.sparse != nullptr) {
            sparse.fetch(static_cast<const T*>(p.sparse) + row, columns);
        } else {
            add_any_choices(p, columns, cols, sparse);
        }
    }
    float d[8], m[8], dense_norm[8], w[8], next_norm[8];
    load_weight(p.dense_norm, columns, dense_norm);
    load_weight(p.sparse_norm, columns, w);
    dense.unpack(d);
    sparse.unpack(m);
    float sums[2] = {sum_of_squares(d), sum_of_squares(m)};
    block_sums(sums, shared);
    scale8(d, scale_of_row(sums[0], cols, eps), dense_norm);
    scale8(m, scale_of_row(sums[1], cols, eps), w);
    dense.round(d);
    sparse.round(m);
    dense.add(sparse);
    dense.unpack(d);
    stream.fetch(static_cast<const T*>(p.residual) + row, columns);
    load_weight(p.norm, columns, w);
    if (p.next_norm != nullptr) columns.load(p.next_norm, next_norm);
    const float scalar = *p.scalar;
    scale8(d, row_scale(d, cols, eps, shared[2]), w);
    dense.round(d);
    stream.add(dense);
    float h[8];
    stream.unpack(h);
#pragma unroll
    for (float& v : h) v *= scalar;
    stream.round(h);
    stream.store(static_cast<T*>(p.out) + row, columns);
    stream.unpack(h);
    const float squares = sum_of_squares(h);
    if (!isfinite(squares)) {
        bool broken = false;
#pragma unroll
        for (const float v : h) broken |= !isfinite(v);
        // Whoever of the block comes here writes the same.
        if (broken && p.marks[blockIdx.x] < 0) p.marks[blockIdx.x] = p.stage;
    }
    if (p.next_norm == nullptr) return;
    scale8(h, scale_of_row(block_sum(squares, shared[3]), cols, eps), next_norm);
    stream.round(h);
    stream.store(static_cast<T*>(p.next) + row, columns);
    if (!Codes || p.next_codes.codes == nullptr) return;
    stream.unpack(h);
    quantise(h, cols, columns, p.next_codes, shared[4]);
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
    const auto run_bf16 = [&](auto codes) {
        threads <= usual_threads ? run(after_attention_kernel<bf16, codes(), true>)
                                 : run(after_attention_kernel<bf16, codes(), false>);
    };
    if (type != Element::bf16) {
        run(after_attention_kernel<float, false, false>);
    } else if (p.dense_codes.codes != nullptr || p.experts_codes.codes != nullptr) {
        run_bf16(std::true_type{});
    } else {
        run_bf16(std::false_type{});
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
    const auto run_bf16 = [&](auto codes) {
        p.sparse == nullptr&& p.k == 8 && threads <= usual_threads
            ? run(finish_layer_kernel<bf16, codes(), true>)
            : run(finish_layer_kernel<bf16, codes(), false>);
    };
    if (type != Element::bf16) {
        run(finish_layer_kernel<float, false, false>);
    } else if (p.next_codes.codes != nullptr) {
        run_bf16(std::true_type{});
    } else {
        run_bf16(std::false_type{});
    }
}

}  // namespace dgemma::backend::cuda
