// Products for the vectors every 64-bit Arm has: no instruction for dot products among them.
#if defined(__aarch64__)
#include <arm_neon.h>

#define DGEMMA_LANES 4
#include "backend/cpu/dot_widening.inl"

namespace dgemma::backend::cpu {
namespace {

inline IntVec round_to_int(Vec x) { return (IntVec)vcvtnq_s32_f32((float32x4_t)x); }

// Panels [k / 4][rows]. Products of two signed bytes fit 16 bits: two of them where codes have 8 bits and 128
// was taken off (at most 2 * 128 * 127), the eight of a group where they have 4 (at most 8 * 15 * 127).
template <int Bits>
struct WideningSums {
    static constexpr int vectors(int) { return 1; }

    template <int Rows>
    static inline void group(std::int64_t, const BytePanel& a, std::int64_t g, const std::uint8_t* codes,
                             IntVec (&dot)[Rows][1]) {
        const std::int32_t* x = a.codes + g * 8 * Rows;
        codes += g * 8 * 128;
        int32x4_t sum[Rows][2] = {};  // of columns 0 and 1, 2 and 3: two partial sums for each
        int16x8_t part[Rows][2] = {};
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
            uint8x16_t code = vld1q_u8(codes + q * 128);
            if (Bits == 8) code = veorq_u8(code, vdupq_n_u8(128));
            const int8x16_t w = vreinterpretq_s8_u8(code);
            for (int r = 0; r < Rows; ++r) {
                const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x[q * Rows + r]));
                const bool first = q == 0 || (Bits == 8 && q % 2 == 0);
                part[r][0] = first ? vmull_s8(vget_low_s8(w), vget_low_s8(four))
                                   : vmlal_s8(part[r][0], vget_low_s8(w), vget_low_s8(four));
                part[r][1] = first ? vmull_high_s8(w, four) : vmlal_high_s8(part[r][1], w, four);
                if (q == 7 || (Bits == 8 && q % 2 == 1)) {
                    for (int h = 0; h < 2; ++h) sum[r][h] = vpadalq_s16(sum[r][h], part[r][h]);
                }
            }
        }
        for (int r = 0; r < Rows; ++r) {
            int32x4_t s = vpaddq_s32(sum[r][0], sum[r][1]);
            if (Bits == 8)
                s = vaddq_s32(s, vdupq_n_s32(128 * static_cast<std::int32_t>(a.sums[g * Rows + r])));
            dot[r][0] = (IntVec)s;
        }
    }
};

double burn_widening(std::int64_t rounds) {
    constexpr int chains = 16;
    int16x8_t acc[chains] = {};
    int8x16_t x = vdupq_n_s8(1);
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < chains; c += 2) {
            acc[c] = vmlal_s8(acc[c], vget_low_s8(x), vget_low_s8(x));
            acc[c + 1] = vmlal_high_s8(acc[c + 1], x, x);
        }
        __asm__ volatile("" : "+w"(x));
    }
    for (auto& v : acc) __asm__ volatile("" ::"w"(v));
    return chains * 8.0 * static_cast<double>(rounds);
}

}  // namespace

const DotKernels dot_neon = {6,
                             kPairWords,
                             6,
                             burn_f32,
                             burn_widening,
                             bf16_widened<6, 24>,
                             affine<WideningSums<8>, 6>,
                             affine<WideningSums<4>, 6>,
                             unpack4,
                             interleave_rows,
                             interleave_columns,
                             round_rows_widened,
                             quantise_row_quads};

}  // namespace dgemma::backend::cpu
#endif
