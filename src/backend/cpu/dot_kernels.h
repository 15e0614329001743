// Products of packed activations with interleaved weights through the dot-product instructions of a machine.
// A table exists only for machines that have them; elsewhere weights are expanded to f32 and go through the
// plain kernels.
//
// Every result is summed in an order fixed by K alone, so it does not depend on how many rows share a panel.
#pragma once

#include <cstdint>
#include <string_view>

namespace dgemma::backend::cpu {

inline constexpr int kMaxBf16Rows = 12;  // rows of a bf16 panel, at most
inline constexpr int kMaxByteRows = 6;   // rows of a panel of 8-bit activations, at most
inline constexpr int kByteBlock = 256;   // 8-bit activations have a scale per row and this many columns

// A panel of 8-bit activations: codes [k / 4][rows][4] signed, and per block of kByteBlock columns and row
// the scale; sums [k / 32][rows]: scale-free sums of the codes of a group, which the weights' biases
// multiply.
struct BytePanel {
    const std::int32_t* codes = nullptr;
    const float* scales = nullptr;  // [blocks][rows]
    const float* sums = nullptr;    // [groups][rows]
};

struct DotKernels {
    const char* name;

    // `rounds` rounds of nothing but the dot instruction, in registers; -> multiply-adds done.
    double (*burn_bf16)(std::int64_t rounds);
    double (*burn_bytes)(std::int64_t rounds);

    // c [rows][32] (leading dimension ldc) = or += a tile^T; a [pairs][rows] pairs of bf16, tile
    // [pairs][32][2] bf16.
    void (*bf16)(int rows, std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
                 std::int64_t ldc, bool add);

    // c [rows][32] = a tile^T for an affine8 tile: codes [k / 4][32][4], scales and biases [k / 32][32] bf16.
    void (*affine8)(int rows, std::int64_t k, const BytePanel& a, const std::uint8_t* codes,
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

    // f32 [k] -> bf16, to every `step`-th pair of `out`: a row of a panel
    void (*round_row)(const float* x, std::int64_t k, std::int64_t step, std::uint32_t* out);
    // f32 [k] -> codes of a row of a BytePanel of `rows` rows, with its scales and sums
    void (*quantise_row)(const float* x, std::int64_t k, std::int64_t rows, std::int32_t* codes,
                         float* scales, float* sums);
};

#if defined(__x86_64__)
extern const DotKernels dot_avx512;
#endif

// The table for this machine, or null. `allowed`: the name of the plain table in force ("avx512"), so that
// forcing an older instruction set also forces the dot products off.
const DotKernels* choose_dot_kernels(std::string_view allowed);

}  // namespace dgemma::backend::cpu
