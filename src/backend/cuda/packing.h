// Weights of 4 and 8 bits as the Hopper kernels read them: cut into pieces of 64 rows by 64 columns, and in a
// piece each thread's numbers side by side, in the order in which the matrix instruction wants them.
//
// A piece is what a warpgroup multiplies at a time: its codes, then its scales. Thread t, of warp w = t / 32
// and lane l = t % 32, holds rows r = 16 w + l / 4 and r + 8, and of every 16 columns 2 c, 2 c + 1, 2 c + 8
// and 2 c + 9, c = l % 4: four pairs, (r, first two), (r + 8, first two), (r, last two), (r + 8, last two).
//   4-bit codes  16 bytes a thread, a word for 16 columns: pair i has its first number in bits 4 i and up,
//                the second in bits 16 + 4 i and up
//   8-bit codes  2 words for 16 columns; those of the first 32 columns at 16 t, the others at 2048 + 16 t.
//                Pair i is bytes i % 2 and 2 + i % 2 of word i / 2
//   scales       16 bytes at 16 (8 w + l / 4)
//     affine     bf16 scale and bias of row r for both groups of 32 columns, then those of row r + 8
//     nvfp4      bf16 scale * 2^118 of row r for the four groups of 16 columns, then those of row r + 8
// Rows of fp8 have an f32 scale and matrices of nvfp4 an f32 factor; those stand apart.
#pragma once

#include <cstdint>

#include "base/weight_view.h"

namespace dgemma::backend::cuda {

enum class Packing : std::uint8_t { none, affine8, affine4, fp8, nvfp4 };

inline constexpr int piece_rows = 64, piece_columns = 64;

constexpr int code_bytes(Packing p) { return p == Packing::affine8 || p == Packing::fp8 ? 4096 : 2048; }
constexpr int piece_bytes(Packing p) { return code_bytes(p) + (p == Packing::fp8 ? 0 : 512); }

// [groups, outs / 64, ins / 64] pieces.
struct PackedMatrix {
    Packing packing = Packing::none;
    const std::uint8_t* pieces = nullptr;
    const float* row_scales = nullptr;  // fp8: [groups, outs]
    const float* globals = nullptr;     // nvfp4: [groups]
    std::int64_t groups = 1, outs = 0, ins = 0;
};

constexpr Packing packing_of(Encoding encoding) {
    switch (encoding) {
        case Encoding::plain:
            return Packing::none;
        case Encoding::affine8:
            return Packing::affine8;
        case Encoding::affine4:
            return Packing::affine4;
        case Encoding::fp8_row:
            return Packing::fp8;
        case Encoding::nvfp4:
            return Packing::nvfp4;
    }
    return Packing::none;
}

}  // namespace dgemma::backend::cuda
