// A weight as it is stored: its logical shape, how its numbers are encoded, and where the bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/tensor.h"

namespace dgemma {

// How the numbers of a weight [..., out, in] are written (contract/checkpoints.md 5). Groups run along `in`.
enum class Encoding : std::uint8_t {
    plain,    // Dtype elements
    affine8,  // q in 0..255; value = scale * q + bias, bf16 scale and bias per row and group of 32
    affine4,  // the same with q in 0..15
    fp8_row,  // E4M3 codes; value = code * scale, one f32 scale per row
    nvfp4,    // E2M1 codes; value = code * scale * global, an E4M3 scale per row and group of 16, one f32
              // `global` per matrix
};
std::string_view name_of(Encoding encoding);  // "plain", "affine8", ...

inline constexpr std::int64_t kAffineGroup = 32;
inline constexpr std::int64_t kNvfp4Group = 16;

// In which order the codes of a matrix [out, in] stand.
enum class Layout : std::uint8_t {
    // Row after row. 4-bit codes: two to a byte, the even element in the low nibble.
    rows,
    // Interleaved for dot products: tiles of 32 rows (the last one filled up with zeros), and within a tile
    //   bf16     [in / 2][32 rows][2]
    //   affine8  [in / 4][32 rows][4]
    //   affine4  [in / 8][32 rows][4 bytes]: byte j holds element j in its low nibble and element 4 + j in
    //   its high one
    // Scales and biases: [in / 32][32 rows]. A bank [experts, out, in] is one such matrix after another.
    tiles,
};
inline constexpr std::int64_t kTileRows = 32;

struct WeightView {
    Shape shape;
    Encoding encoding = Encoding::plain;
    Layout layout = Layout::rows;
    Dtype type = Dtype::bf16;            // of plain elements
    const std::byte* codes = nullptr;    // any alignment in `rows`, 64 in `tiles`
    const std::byte* scales = nullptr;   // affine: bf16 [..., out, in / 32]; fp8_row: f32 [..., out]; nvfp4:
                                         // E4M3 [..., out, in / 16]
    const std::byte* biases = nullptr;   // affine: like the scales
    const std::byte* globals = nullptr;  // nvfp4: f32, one per matrix of the bank

    // A plain tensor of a file.
    static WeightView of(const Tensor& tensor) {
        return {.shape = tensor.shape, .type = tensor.type, .codes = tensor.data};
    }
    [[nodiscard]] std::int64_t elements() const { return elements_of(shape); }
};

}  // namespace dgemma
