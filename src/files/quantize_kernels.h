// The inner loops that write weights in their encodings, compiled once per instruction set from the same
// source; the right table is chosen at run time. Only raw pointers cross this border. Every table gives the
// same bytes: lanes are rows, sums over columns run in order, and no product is fused with a sum.
#pragma once

#include <cstdint>
#include <string_view>

namespace dgemma::files {

// A block of rows in f32: kTileRows rows of `cols` elements, `stride` apart. Rows beyond the matrix are zero.
struct TileRows {
    const float* data = nullptr;
    std::int64_t stride = 0;
    std::int64_t cols = 0;
};

struct QuantizeKernels {
    const char* name;

    // The largest magnitude of n values as the bits of an f32; NaN and infinity are above 0x7F7FFFFF.
    std::uint32_t (*magnitude)(const float* x, std::int64_t n);

    // --- whole tiles in Layout::tiles (base/weight_view.h); `cols` is a multiple of 2, of 32 for the others
    void (*bf16_tile)(const TileRows& x, std::byte* codes);
    void (*affine8_tile)(const TileRows& x, std::byte* codes, std::byte* scales, std::byte* biases);
    void (*affine4_tile)(const TileRows& x, std::byte* codes, std::byte* scales, std::byte* biases);

    // --- Layout::rows
    void (*bf16_row)(const float* x, std::int64_t n, std::byte* codes);
    void (*fp8_row)(const float* x, std::int64_t n, float scale, std::byte* codes);
    // The first `rows` rows of the tile, one after another; `cols` is a multiple of 16.
    void (*nvfp4_tile)(const TileRows& x, std::int64_t rows, float global, std::byte* codes,
                       std::byte* scales);

    // n bf16 numbers at any address to f32.
    void (*widen)(const std::byte* bf16, std::int64_t n, float* out);
    // n independent numbers of nearly normal distribution (the sum of four uniform ones), mean 0, standard
    // deviation `deviation`, determined by the two keys and the place alone.
    void (*noise)(std::uint32_t key, std::uint32_t other_key, std::int64_t n, float deviation, float* out);
};

extern const QuantizeKernels quantize_baseline;
#if defined(__x86_64__)
extern const QuantizeKernels quantize_avx2;
extern const QuantizeKernels quantize_avx512;
#endif

// The best table for this machine; or the one of this name ("baseline", "avx2", "avx512"), null where the
// machine cannot run it.
const QuantizeKernels& choose_quantize_kernels();
const QuantizeKernels* quantize_kernels_named(std::string_view name);

}  // namespace dgemma::files
