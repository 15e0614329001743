// Rows of activations to E4M3, where the kernel that made them has not done it.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/row_norm.cuh"

namespace dgemma::backend::cuda {

namespace {

__global__ void quantise_rows_kernel(const bf16* x, int cols, E4m3Target to) {
    begin_kernel();
    __shared__ float shared[32];
    const Columns columns(cols);
    float v[8];
    columns.load(x + static_cast<std::int64_t>(blockIdx.x) * cols, v);
    quantise(v, cols, columns, to, shared);
}

}  // namespace

void quantise_rows(Context& c, const void* x, std::int64_t rows, std::int64_t cols, const E4m3Target& to) {
    const unsigned threads = row_threads(c, cols);
    if (threads == 0 || rows == 0) return;
    launch(c, "quantising activations", quantise_rows_kernel, static_cast<unsigned>(rows), threads, 0,
           static_cast<const bf16*>(x), static_cast<int>(cols), to);
}

}  // namespace dgemma::backend::cuda
