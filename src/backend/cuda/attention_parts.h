// The parts of attention whose columns lie as the matrix unit leaves them: of every 16 columns of a row, lane
// q of four has 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, which it writes together.
#pragma once

#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

// As merge_attention. dim: 256 or 512; splits: 2 or 4.
void merge_attention_fragments(Context&, const float* sums, const float2* ends, std::int64_t rows, int heads,
                               int dim, int splits, void* out, const E4m3Target& codes);

}  // namespace dgemma::backend::cuda
