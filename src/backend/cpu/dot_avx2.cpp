// Products for AVX2 with FMA; the build compiles this file for that.
#if defined(__x86_64__)
#include <immintrin.h>

#define DGEMMA_LANES 8
#include "backend/cpu/dot_maddubs.inl"
#include "backend/cpu/dot_widening.inl"

namespace dgemma::backend::cpu {
namespace {

inline IntVec round_to_int(Vec x) { return (IntVec)_mm256_cvtps_epi32((__m256)x); }
inline ShortVec madd_bytes(ShortVec codes, ShortVec x) {
    return (ShortVec)_mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
}
inline IntVec madd_halves(ShortVec a, ShortVec b) {
    return (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

}  // namespace

// Sixteen registers: 10 sums of 5 rows and 16 columns, since with 12 a compiler runs out of them and a sum
// that waits for memory is slower than one less. 8-bit codes have two sums for each row and column.
const DotKernels dot_avx2 = {5,
                             kPairWords,
                             6,
                             burn_f32,
                             burn_maddubs,
                             bf16_widened<5, 10>,
                             affine<MaddubsSums<8, 1>, 6>,
                             affine<MaddubsSums<4, 2>, 6>,
                             unpack4,
                             interleave_rows,
                             interleave_columns,
                             round_rows_widened,
                             quantise_row_quads};

}  // namespace dgemma::backend::cpu
#endif
