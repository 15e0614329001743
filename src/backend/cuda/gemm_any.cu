// Matrix products of any element types and sizes without matrix units: true f32 sums in ascending k. The path
// of f32 models, and of weights that are not bf16.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int tile = 64;   // rows and columns of a block's output
constexpr int depth = 16;  // of one step in k
constexpr int threads = 256;

// out [rows, outs] = x [rows, ins] w, w [ins, outs] (ByRows) or its transpose [outs, ins]. Block z takes the
// rows of group z.
template <class X, class W, class O, bool ByRows>
__global__ void __launch_bounds__(threads)
    multiply_any_kernel(const X* x, const W* weight, std::int64_t weight_stride, const std::int32_t* offsets,
                        int rows, int ins, int outs, O* out) {
    begin_kernel();
    __shared__ float xs[depth][tile + 4];
    __shared__ float ws[depth][tile + 4];
    const int group = static_cast<int>(blockIdx.z);
    const int first = offsets == nullptr ? 0 : offsets[group];
    const int end = offsets == nullptr ? rows : offsets[group + 1];
    const int row0 = first + static_cast<int>(blockIdx.y) * tile;
    const int col0 = static_cast<int>(blockIdx.x) * tile;
    if (row0 >= end) return;
    const W* w = weight + group * weight_stride;
    const int t = static_cast<int>(threadIdx.x);
    const int ty = t / 16, tx = t % 16;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < ins; k0 += depth) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = t + threads * i;
            const int r = at / depth, k = at % depth;
            xs[k][r] = row0 + r < end && k0 + k < ins
                           ? to_float(x[static_cast<std::int64_t>(row0 + r) * ins + k0 + k])
                           : 0.0f;
            if (ByRows) {
                const int n = at % tile, kk = at / tile;
                ws[kk][n] = col0 + n < outs && k0 + kk < ins
                                ? to_float(w[static_cast<std::int64_t>(k0 + kk) * outs + col0 + n])
                                : 0.0f;
            } else {
                ws[k][r] = col0 + r < outs && k0 + k < ins
                               ? to_float(w[static_cast<std::int64_t>(col0 + r) * ins + k0 + k])
                               : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = xs[k][ty + 16 * i];
                b[i] = ws[k][tx + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = row0 + ty + 16 * i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int n = col0 + tx + 16 * j;
            if (r < end && n < outs) out[static_cast<std::int64_t>(r) * outs + n] = from_float<O>(sums[i][j]);
        }
    }
}

template <class T>
__global__ void gelu_times_kernel(const T* gate, const T* up, int width, std::int64_t stride, T* out) {
    begin_kernel();
    const std::int64_t row = blockIdx.x;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
        const float g = rounded<T>(gelu(to_float(gate[row * stride + i])));
        out[row * width + i] = from_float<T>(g * to_float(up[row * stride + i]));
    }
}

template <class T>
__global__ void add_parts_kernel(const float* sums, std::int64_t parts, std::int64_t count, T* out) {
    begin_kernel();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    for (std::int64_t p = 0; p < parts; ++p) sum += sums[p * count + i];
    out[i] = from_float<T>(sum);
}

}  // namespace

void multiply_any(Context& c, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& weight,
                  bool by_rows, const Groups& groups, Element out_type, void* out) {
    if (c.failed() || rows == 0) return;
    const std::int64_t outs = by_rows ? weight.ins : weight.outs;
    const std::int64_t ins = by_rows ? weight.outs : weight.ins;
    const dim3 grid(static_cast<unsigned>((outs + tile - 1) / tile),
                    static_cast<unsigned>((rows + tile - 1) / tile), static_cast<unsigned>(groups.count));
    const auto run = [&](const auto* a, const auto* w, auto* to) {
        using X = std::remove_cvref_t<decltype(*a)>;
        using W = std::remove_cvref_t<decltype(*w)>;
        using O = std::remove_cvref_t<decltype(*to)>;
        if (by_rows) {
            launch(c, "a matrix product", multiply_any_kernel<X, W, O, true>, grid, threads, 0, a, w,
                   outs * ins, groups.offsets, static_cast<int>(rows), static_cast<int>(ins),
                   static_cast<int>(outs), to);
        } else {
            launch(c, "a matrix product", multiply_any_kernel<X, W, O, false>, grid, threads, 0, a, w,
                   outs * ins, groups.offsets, static_cast<int>(rows), static_cast<int>(ins),
                   static_cast<int>(outs), to);
        }
    };
    const auto weights = [&](const auto* a, auto* to) {
        if (weight.type == Element::bf16) {
            run(a, static_cast<const bf16*>(weight.data), to);
        } else {
            run(a, static_cast<const float*>(weight.data), to);
        }
    };
    if (x_type == Element::f32) {
        weights(static_cast<const float*>(x), static_cast<float*>(out));
    } else if (out_type == Element::bf16) {
        weights(static_cast<const bf16*>(x), static_cast<bf16*>(out));
    } else {
        weights(static_cast<const bf16*>(x), static_cast<float*>(out));
    }
}

void gelu_times(Context& c, Element type, const void* gate, const void* up, std::int64_t rows,
                std::int64_t width, std::int64_t stride, void* out) {
    if (c.failed() || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    if (type == Element::bf16) {
        launch(c, "a gated product", gelu_times_kernel<bf16>, n, 256, 0, static_cast<const bf16*>(gate),
               static_cast<const bf16*>(up), static_cast<int>(width), stride, static_cast<bf16*>(out));
    } else {
        launch(c, "a gated product", gelu_times_kernel<float>, n, 256, 0, static_cast<const float*>(gate),
               static_cast<const float*>(up), static_cast<int>(width), stride, static_cast<float*>(out));
    }
}

void add_parts(Context& c, Element type, const float* sums, std::int64_t parts, std::int64_t count,
               void* out) {
    if (c.failed() || count == 0) return;
    const auto blocks = static_cast<unsigned>((count + 255) / 256);
    if (type == Element::bf16) {
        launch(c, "adding partial sums", add_parts_kernel<bf16>, blocks, 256, 0, sums, parts, count,
               static_cast<bf16*>(out));
    } else {
        launch(c, "adding partial sums", add_parts_kernel<float>, blocks, 256, 0, sums, parts, count,
               static_cast<float*>(out));
    }
}

}  // namespace dgemma::backend::cuda
