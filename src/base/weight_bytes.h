// How many bytes a weight takes, part by part. Readers check files against it, writers lay them out by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/weight_view.h"

namespace dgemma {

// Bytes of the parts of a weight; 0 where an encoding has no such part.
struct WeightBytes {
    std::uint64_t codes = 0, scales = 0, biases = 0, globals = 0;

    [[nodiscard]] std::uint64_t total() const { return codes + scales + biases + globals; }
};

// A weight [..., out, in] as a stack of matrices, each cut into tiles of kTileRows rows. In both layouts a
// tile's bytes are consecutive in every part, tiles follow one another within a matrix, and matrices within
// the weight. In `rows` the last tile of a matrix is as short as its rows.
struct WeightGrid {
    std::int64_t matrices = 1, rows = 1, cols = 1;  // a vector is one row, a scalar one element
    std::int64_t tiles = 1;                         // of one matrix
    WeightBytes row;                                // of one row; its globals are 0
    WeightBytes matrix;                             // of one matrix, with the rows that fill its last tile

    // Where row `row` of matrix `index` begins in each part; in `tiles` only for rows that begin a tile.
    [[nodiscard]] WeightBytes offset(std::int64_t index, std::int64_t first_row) const;
    [[nodiscard]] WeightBytes total() const;
};

// Nothing where there is no such weight: a width that the encoding's groups or the layout's words do not
// divide, tiles of anything but bf16 and the affine encodings, an empty or negative dimension, or more than
// 2^60 bytes.
std::optional<WeightGrid> weight_grid(const Shape& shape, Encoding encoding, Layout layout, Dtype type);
inline std::optional<WeightGrid> weight_grid(const WeightView& weight) {
    return weight_grid(weight.shape, weight.encoding, weight.layout, weight.type);
}

std::string_view name_of(Layout layout);  // "rows", "tiles"

// What the width of a matrix must be a multiple of for an encoding: 32, 16 or 1.
std::int64_t group_of(Encoding encoding);

}  // namespace dgemma
