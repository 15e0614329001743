// Weights of 4 and 8 bits as the Hopper kernels read them: cut into pieces of 64 rows by 64 columns, and in a
// piece each thread's numbers side by side, in the order in which the matrix instruction wants them.
//
// A piece is what a warpgroup multiplies at a time: its codes, then its scales. Thread t, of warp w = t / 32
// and lane l = t % 32, holds rows r = 16 w + l / 4 and r + 8, and of every 16 columns 2 c, 2 c + 1, 2 c + 8
// and 2 c + 9, c = l % 4: four pairs, (r, first two), (r + 8, first two), (r, last two), (r + 8, last two).
//   4-bit codes  16 bytes a thread, a word for 16 columns
//   8-bit codes  2 words for 16 columns, pairs 2 i and 2 i + 1 in word i; those of the first 32 columns at
//                16 t, the others at 2048 + 16 t
//   scales       16 bytes at 16 (8 w + l / 4)
//     affine     bf16 scale and bias of row r for both groups of 32 columns, then those of row r + 8
//     nvfp4      bf16 scale * 2^118 of row r for the four groups of 16 columns, then those of row r + 8
// Rows of fp8 have an f32 scale and matrices of nvfp4 an f32 factor; those stand apart.
//
// The first number of a pair is in the lower half of a word, the second at the same bits of the upper half:
//   affine4   pair i in bits 4 i to 4 i + 3
//   affine8   the even pair in bits 0 to 7, the odd one in bits 8 to 15
//   fp8       the even pair's sign in bit 15, the rest in bits 10 to 4, where bf16 has sign, exponent and
//             mantissa; the odd pair's in bits 14, 13 to 11 and 3 to 0
//   nvfp4     pair 0 in bits 15, 8, 7, 6, where bf16 has sign, exponent and mantissa; pair 1 three bits
//   lower,
//             pair 2 six; pair 3 in bits 14, 13, 11, 10
// As bf16, a whole number up to 255 in the low bits is that many times 2^-133: numbers below 2^-126 and those
// just above have the same spacing. Affine codes are used so; their scales are stored times 2^117 (those of
// row r + 8 in affine4 times 2^113, since its codes stand four bits higher), their biases times 2^-16, and
// the sums are multiplied by 2^16. That is exact for scales below 2^11.
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
