// Rows of a weight as f32, whatever its encoding and layout: the one place that knows them all. Slow and
// exact; the dot kernels read the layouts they like directly.
#pragma once

#include <cstdint>

#include "base/weight_view.h"

namespace dgemma::backend::cpu {

// Rows of one matrix of the weight (its second-last dimension) and elements of a row (its last).
std::int64_t rows_of(const WeightView& weight);
std::int64_t cols_of(const WeightView& weight);

// Row `row` of all the weight's rows (expert e of a bank begins at e * rows_of) -> out [cols].
void load_row(const WeightView& weight, std::int64_t row, float* out);

// Columns [first, first + count) of a row of a plain weight in `rows` layout.
void load_part(const WeightView& weight, std::int64_t row, std::int64_t first, std::int64_t count,
               float* out);

// Where the tile of 32 rows that holds row `row` of matrix `matrix` begins: its codes, and its scales and
// biases counted in elements. Of weights in `tiles` layout.
struct TileView {
    const std::byte* codes = nullptr;
    const std::uint16_t* scales = nullptr;
    const std::uint16_t* biases = nullptr;
};
TileView tile_of(const WeightView& weight, std::int64_t matrix, std::int64_t row);

}  // namespace dgemma::backend::cpu
