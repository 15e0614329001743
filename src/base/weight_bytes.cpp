#include "base/weight_bytes.h"

namespace dgemma {

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 60;

WeightBytes times(const WeightBytes& bytes, std::uint64_t n) {
    return {bytes.codes * n, bytes.scales * n, bytes.biases * n, bytes.globals * n};
}

WeightBytes row_bytes(Encoding encoding, std::uint64_t cols, std::size_t element) {
    switch (encoding) {
        case Encoding::plain:
            return {cols * element, 0, 0, 0};
        case Encoding::affine8:
            return {cols, cols / kAffineGroup * 2, cols / kAffineGroup * 2, 0};
        case Encoding::affine4:
            return {cols / 2, cols / kAffineGroup * 2, cols / kAffineGroup * 2, 0};
        case Encoding::fp8_row:
            return {cols, 4, 0, 0};
        case Encoding::nvfp4:
            return {cols / 2, cols / kNvfp4Group, 0, 0};
    }
    return {};
}

}  // namespace

std::string_view name_of(Layout layout) { return layout == Layout::tiles ? "tiles" : "rows"; }

std::int64_t group_of(Encoding encoding) {
    switch (encoding) {
        case Encoding::affine8:
        case Encoding::affine4:
            return kAffineGroup;
        case Encoding::nvfp4:
            return kNvfp4Group;
        case Encoding::plain:
        case Encoding::fp8_row:
            return 1;
    }
    return 1;
}

WeightBytes WeightGrid::offset(std::int64_t index, std::int64_t first_row) const {
    const WeightBytes before = times(matrix, static_cast<std::uint64_t>(index));
    const WeightBytes within = times(row, static_cast<std::uint64_t>(first_row));
    return {before.codes + within.codes, before.scales + within.scales, before.biases + within.biases,
            before.globals};
}

WeightBytes WeightGrid::total() const { return times(matrix, static_cast<std::uint64_t>(matrices)); }

std::optional<WeightGrid> weight_grid(const Shape& shape, Encoding encoding, Layout layout, Dtype type) {
    // A bound of 2^60 elements first, so that no product below overflows.
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) {
        if (size <= 0 || size > static_cast<std::int64_t>(most_bytes) / elements) return std::nullopt;
        elements *= size;
    }
    WeightGrid grid;
    grid.cols = shape.empty() ? 1 : shape.back();
    grid.rows = shape.size() < 2 ? 1 : shape[shape.size() - 2];
    grid.matrices = elements / grid.cols / grid.rows;
    grid.tiles = (grid.rows + kTileRows - 1) / kTileRows;
    if (encoding != Encoding::plain && shape.size() < 2) return std::nullopt;
    if (grid.cols % group_of(encoding) != 0) return std::nullopt;
    if (layout == Layout::tiles) {
        const bool tiled = encoding == Encoding::affine8 || encoding == Encoding::affine4 ||
                           (encoding == Encoding::plain && type == Dtype::bf16);
        if (!tiled || shape.size() < 2 || grid.cols % 2 != 0) return std::nullopt;
    }
    // Rounding up to whole tiles multiplies by less than 32, an element has at most 8 bytes.
    if (elements > static_cast<std::int64_t>(most_bytes >> 9)) return std::nullopt;

    grid.row = row_bytes(encoding, static_cast<std::uint64_t>(grid.cols), size_of(type));
    const std::int64_t stored = layout == Layout::tiles ? grid.tiles * kTileRows : grid.rows;
    grid.matrix = times(grid.row, static_cast<std::uint64_t>(stored));
    if (encoding == Encoding::nvfp4) grid.matrix.globals = 4;
    return grid;
}

}  // namespace dgemma
