// bf16 matrix products on the matrix units of compute capability 8.0: mma.sync fed by asynchronous copies,
// four stages deep. An output's sum runs over k in ascending steps of 16 whatever the tile, so the tile may
// follow the number of rows.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int depth = 32;  // of one stage in k
constexpr int stages = 4;
constexpr int pad = 8;  // elements behind a row in shared memory, against bank conflicts
constexpr int columns = 128;
constexpr int threads = 256;  // eight warps: rows / 2 x columns / 4 each

template <int Rows, bool ByRows>
constexpr int stage_elements() {
    return Rows * (depth + pad) + (ByRows ? depth * (columns + pad) : columns * (depth + pad));
}

struct Problem {
    const bf16* x;
    const bf16* weight;
    std::int64_t weight_stride;
    const std::int32_t* offsets;  // null: all rows are one group
    int rows, ins, outs;
    int part;   // of k, a multiple of `depth`; parts > 0 only
    int parts;  // 0: the whole of k
};

template <int Rows, bool ByRows, class O>
__global__ void __launch_bounds__(threads) multiply_mma_kernel(Problem p, O* out) {
    begin_kernel();
    extern __shared__ __align__(16) bf16 shared[];
    const int group = p.parts > 0 ? 0 : static_cast<int>(blockIdx.z);
    const int first = p.offsets == nullptr ? 0 : p.offsets[group];
    const int end = p.offsets == nullptr ? p.rows : p.offsets[group + 1];
    const int row0 = first + static_cast<int>(blockIdx.y) * Rows;
    const int col0 = static_cast<int>(blockIdx.x) * columns;
    if (row0 >= end) return;
    const int k_begin = p.parts > 0 ? static_cast<int>(blockIdx.z) * p.part : 0;
    const int k_end = p.parts > 0 ? min(p.ins, k_begin + p.part) : p.ins;
    const bf16* w = p.weight + group * p.weight_stride;
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    const int warp_row = warp / 4 * (Rows / 2), warp_col = warp % 4 * 32;

    const auto load_stage = [&](int step) {
        bf16* xs = shared + step % stages * stage_elements<Rows, ByRows>();
        bf16* ws = xs + Rows * (depth + pad);
        const int k0 = k_begin + step * depth;
#pragma unroll
        for (int i = 0; i < Rows * depth / 8 / threads; ++i) {
            const int at = t + threads * i;
            const int r = at / (depth / 8), k = at % (depth / 8) * 8;
            const bool valid = row0 + r < end && k0 + k < k_end;
            copy16_async(shared_address(xs + r * (depth + pad) + k),
                         valid ? p.x + static_cast<std::int64_t>(row0 + r) * p.ins + k0 + k : p.x, valid);
        }
#pragma unroll
        for (int i = 0; i < columns * depth / 8 / threads; ++i) {
            const int at = t + threads * i;
            if (ByRows) {
                const int k = at / (columns / 8), n = at % (columns / 8) * 8;
                const bool valid = k0 + k < k_end && col0 + n < p.outs;
                copy16_async(shared_address(ws + k * (columns + pad) + n),
                             valid ? w + static_cast<std::int64_t>(k0 + k) * p.outs + col0 + n : w, valid);
            } else {
                const int n = at / (depth / 8), k = at % (depth / 8) * 8;
                const bool valid = col0 + n < p.outs && k0 + k < k_end;
                copy16_async(shared_address(ws + n * (depth + pad) + k),
                             valid ? w + static_cast<std::int64_t>(col0 + n) * p.ins + k0 + k : w, valid);
            }
        }
    };

    constexpr int row_blocks = Rows / 32;  // of 16 rows, per warp
    float sums[row_blocks][4][4] = {};
    const int steps = (k_end - k_begin + depth - 1) / depth;
    for (int s = 0; s < stages - 1; ++s) {
        if (s < steps) load_stage(s);
        commit_copies();
    }
    for (int step = 0; step < steps; ++step) {
        wait_copies<stages - 2>();
        __syncthreads();
        if (step + stages - 1 < steps) load_stage(step + stages - 1);
        commit_copies();
        const bf16* xs = shared + step % stages * stage_elements<Rows, ByRows>();
        const bf16* ws = xs + Rows * (depth + pad);
#pragma unroll
        for (int k = 0; k < depth; k += 16) {
            std::uint32_t a[row_blocks][4], b[2][4];
#pragma unroll
            for (int i = 0; i < row_blocks; ++i) {
                load_matrices(a[i], shared_address(xs + (warp_row + 16 * i + lane % 16) * (depth + pad) + k +
                                                   lane / 16 * 8));
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int n = warp_col + 16 * j;
                if (ByRows) {
                    load_matrices_transposed(
                        b[j], shared_address(ws + (k + lane % 16) * (columns + pad) + n + lane / 16 * 8));
                } else {
                    load_matrices(b[j], shared_address(ws + (n + lane % 8 + lane / 16 * 8) * (depth + pad) +
                                                       k + lane / 8 % 2 * 8));
                }
            }
#pragma unroll
            for (int i = 0; i < row_blocks; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    O* to = out + (p.parts > 0 ? static_cast<std::int64_t>(blockIdx.z) * p.rows * p.outs : 0);
#pragma unroll
    for (int i = 0; i < row_blocks; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = row0 + warp_row + 16 * i + 8 * h + lane / 4;
            if (r >= end) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int n = col0 + warp_col + 8 * j + lane % 4 * 2;
                O* at = to + static_cast<std::int64_t>(r) * p.outs + n;
                if (n < p.outs) at[0] = from_float<O>(sums[i][j][2 * h]);
                if (n + 1 < p.outs) at[1] = from_float<O>(sums[i][j][2 * h + 1]);
            }
        }
    }
}

template <int Rows, bool ByRows, class O>
void run_product(Context& c, const Problem& p, std::int64_t groups, O* out) {
    constexpr int bytes = stages * stage_elements<Rows, ByRows>() * 2;
    auto* kernel = multiply_mma_kernel<Rows, ByRows, O>;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "a matrix product");
    const dim3 grid(static_cast<unsigned>((p.outs + columns - 1) / columns),
                    static_cast<unsigned>((p.rows + Rows - 1) / Rows),
                    static_cast<unsigned>(p.parts > 0 ? p.parts : groups));
    launch(c, "a matrix product", kernel, grid, threads, bytes, p, out);
}

}  // namespace

void multiply_mma(Context& c, const void* x, std::int64_t rows, const DeviceMatrix& weight, bool by_rows,
                  const Groups& groups, std::int64_t parts, Element out_type, void* out) {
    if (c.failed() || rows == 0) return;
    Problem p{};
    p.x = static_cast<const bf16*>(x);
    p.weight = static_cast<const bf16*>(weight.data);
    p.weight_stride = weight.outs * weight.ins;
    p.offsets = groups.offsets;
    p.rows = static_cast<int>(rows);
    p.outs = static_cast<int>(by_rows ? weight.ins : weight.outs);
    p.ins = static_cast<int>(by_rows ? weight.outs : weight.ins);
    p.parts = static_cast<int>(parts);
    p.part = parts > 0 ? static_cast<int>(part_of(p.ins, parts)) : 0;
    const auto run = [&](auto* to) {
        if (by_rows) {
            rows > 64 ? run_product<128, true>(c, p, groups.count, to)
                      : run_product<64, true>(c, p, groups.count, to);
        } else {
            rows > 64 ? run_product<128, false>(c, p, groups.count, to)
                      : run_product<64, false>(c, p, groups.count, to);
        }
    };
    if (out_type == Element::bf16) {
        run(static_cast<bf16*>(out));
    } else {
        run(static_cast<float*>(out));
    }
}

}  // namespace dgemma::backend::cuda
