// What Hopper's tensor copy engine needs to know of a matrix.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

// A view of a row-major bf16 matrix [rows, cols] for the copy engine: boxes of `box_rows` x 64 elements,
// stored with a 128-byte swizzle. Columns and rows beyond the end read as zeros. The address is a multiple of
// 16, cols of 8, box_rows at most 256. Errors are kept in the context.
CUtensorMap tensor_map(Context& context, const void* data, std::int64_t rows, std::int64_t cols,
                       int box_rows);

}  // namespace dgemma::backend::cuda
