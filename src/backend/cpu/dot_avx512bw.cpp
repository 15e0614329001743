// Products for AVX-512 without its dot instructions; the build compiles this file for that.
#if defined(__x86_64__)
#include <immintrin.h>

#define DGEMMA_LANES 16
#include "backend/cpu/dot_maddubs.inl"
#include "backend/cpu/dot_widening.inl"

namespace dgemma::backend::cpu {
namespace {

inline IntVec round_to_int(Vec x) { return (IntVec)_mm512_cvtps_epi32((__m512)x); }
inline ShortVec madd_bytes(ShortVec codes, ShortVec x) {
    return (ShortVec)_mm512_maddubs_epi16((__m512i)codes, (__m512i)x);
}
inline IntVec madd_halves(ShortVec a, ShortVec b) {
    return (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}

}  // namespace

const DotKernels dot_avx512bw = {12,
                                 kPairWords,
                                 6,
                                 burn_f32,
                                 burn_maddubs,
                                 bf16_widened<12, 24>,
                                 affine<MaddubsSums<8, 2>, 6>,
                                 affine<MaddubsSums<4, 2>, 6>,
                                 unpack4,
                                 interleave_rows,
                                 interleave_columns,
                                 round_rows_widened,
                                 quantise_row_quads};

}  // namespace dgemma::backend::cpu
#endif
