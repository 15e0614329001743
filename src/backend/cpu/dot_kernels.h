// Products of packed activations with interleaved weights through the dot-product instructions of a machine,
// or what comes nearest to them there. Where a machine has no table, weights are expanded to f32 and go
// through the plain kernels.
//
// Every result is summed in an order fixed by K alone, so it does not depend on how many rows share a panel.
// The operands are rounded alike by every table, sums of codes are exact, and those of bf16 run over the
// pairs with the odd element first: all tables agree in every bit, except dot_neon_i8mm_bf16, whose
// instruction rounds the sum of a pair of its own (and numbers below the normal range, which some flush to
// zero).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dgemma::backend::cpu {

inline constexpr int kMaxPanelRows = 12;  // rows of a panel of any table, at most
inline constexpr int kByteBlock = 256;    // 8-bit activations have a scale per row and this many columns

// A panel of 8-bit activations: signed codes in -127..127, k bytes a row, in an order that is the table's own
// (its `quantise_row` writes it and its products read it); per block of kByteBlock columns and row the scale;
// sums [k / 32][rows]: scale-free sums of the codes of a group, which the weights' biases multiply.
struct BytePanel {
    const std::int32_t* codes = nullptr;
    const float* scales = nullptr;  // [blocks][rows]
    const float* sums = nullptr;    // [groups][rows]
};

// What a block of activations whose largest is `largest` is multiplied by to become codes. Zero for a block
// that holds nothing a product would notice, or that is not finite: that one has no codes, and its scale,
// which is not finite either, makes its row's results so. Always inlined: every file that uses it is compiled
// for another machine.
[[gnu::always_inline]] static inline float bytes_per_unit(float largest) {
    return largest > 1e-36f && __builtin_isfinite(largest) ? 127.0f / largest : 0.0f;
}

struct DotKernels {
    int bf16_rows;   // of a panel of bf16 activations, at most
    int pair_words;  // 32-bit words that two of them take there
    int byte_rows;   // of a panel of 8-bit activations, at most

    // `rounds` rounds of nothing but the dot instruction (of bytes: with codes of 4 bits, where 8 bits take
    // more of them), in registers; -> multiply-adds done.
    double (*burn_bf16)(std::int64_t rounds);
    double (*burn_bytes)(std::int64_t rounds);

    // c [rows][32] (leading dimension ldc) = or += a tile^T; a: a panel written by `round_rows`, tile
    // [pairs][32][2] bf16. Null, and all of bf16 with it, where the plain kernels are as fast.
    void (*bf16)(int rows, std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
                 std::int64_t ldc, bool add);

    // c [rows][32] = a tile^T for an affine8 tile: codes [k / 4][32][4], scales and biases [k / 32][32] bf16.
    void (*affine8)(int rows, std::int64_t k, const BytePanel& a, const std::uint8_t* codes,
                    const std::uint16_t* scales, const std::uint16_t* biases, float* c, std::int64_t ldc);
    // The same for codes that are all below 16.
    void (*affine4)(int rows, std::int64_t k, const BytePanel& a, const std::uint8_t* codes,
                    const std::uint16_t* scales, const std::uint16_t* biases, float* c, std::int64_t ldc);
    // affine4 codes [k / 8][32][4] -> affine8 codes [k / 4][32][4]
    void (*unpack4)(std::int64_t k, const std::uint8_t* packed, std::uint8_t* codes);

    // 32 rows of bf16 (`stride` elements apart, any alignment, the last `missing` of them absent: zeros) ->
    // [pairs][32][2]
    void (*interleave_rows)(const std::byte* rows, std::int64_t stride, int missing, std::int64_t pairs,
                            std::uint32_t* tile);
    // Rows k, k + 1 of a [pairs * 2, ...] bf16 matrix, 32 columns from `first` on -> [pairs][32][2]
    void (*interleave_columns)(const std::byte* rows, std::int64_t stride, std::int64_t pairs,
                               std::uint32_t* tile);

    // The rows x[0 .. rows - 1], f32 [k] each, k even -> a panel of bf16, rows * k / 2 * pair_words words
    void (*round_rows)(const float* const* x, std::int64_t k, int rows, std::uint32_t* panel);
    // f32 [k], k a multiple of 32 -> row r of a BytePanel of `rows` rows: codes, scales and sums begin with
    // the panel
    void (*quantise_row)(const float* x, std::int64_t k, std::int64_t rows, std::int64_t r,
                         std::int32_t* codes, float* scales, float* sums);
};

#if defined(__x86_64__)
extern const DotKernels dot_avx2;
extern const DotKernels dot_avx512bw;
extern const DotKernels dot_avx512;
#elif defined(__aarch64__)
extern const DotKernels dot_neon;
extern const DotKernels dot_neon_dot;
extern const DotKernels dot_neon_i8mm_bf16;
#endif

}  // namespace dgemma::backend::cpu
