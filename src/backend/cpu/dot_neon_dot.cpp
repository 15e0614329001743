// Products for Arm with SDOT, four products of signed bytes added into 32 bits; the build compiles this file
// for that. bf16 goes by widening.
#if defined(__aarch64__)
#include <arm_neon.h>

#define DGEMMA_LANES 4
#include "backend/cpu/dot_widening.inl"

namespace dgemma::backend::cpu {
namespace {

inline IntVec round_to_int(Vec x) { return (IntVec)vcvtnq_s32_f32((float32x4_t)x); }

// `Count` quads, at most four; reads no further.
template <int Count>
inline int8x16_t load_quads(const std::int32_t* x) {
    int32x4_t v = vdupq_n_s32(0);
    if constexpr (Count >= 4) {
        v = vld1q_s32(x);
    } else if constexpr (Count == 1) {
        v = vld1q_dup_s32(x);
    } else {
        v = vcombine_s32(vld1_s32(x), vdup_n_s32(0));
        if constexpr (Count == 3) v = vld1q_lane_s32(x + 2, v, 2);
    }
    return vreinterpretq_s8_s32(v);
}

// Panels [k / 4][rows]. Codes of 8 bits become signed by taking 128 off, which the sum gets back at once.
template <int Bits>
struct SdotSums {
    static constexpr int vectors(int) { return 4; }

    template <int Rows>
    static inline void group(std::int64_t, const BytePanel& a, std::int64_t g, const std::uint8_t* codes,
                             IntVec (&dot)[Rows][4]) {
        const std::int32_t* x = a.codes + g * 8 * Rows;
        codes += g * 8 * 128;
        for (int r = 0; r < Rows; ++r) {
            const std::int32_t start = Bits == 8 ? 128 * static_cast<std::int32_t>(a.sums[g * Rows + r]) : 0;
            for (int v = 0; v < 4; ++v) dot[r][v] = IntVec{} + start;
        }
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
            int8x16_t w[4];
            for (int v = 0; v < 4; ++v) {
                uint8x16_t code = vld1q_u8(codes + q * 128 + v * 16);
                if (Bits == 8) code = veorq_u8(code, vdupq_n_u8(128));
                w[v] = vreinterpretq_s8_u8(code);
            }
            add_rows(w, x + q * Rows, dot, std::make_integer_sequence<int, Rows>());
        }
    }

  private:
    template <int Rows, int... R>
    static inline void add_rows(const int8x16_t (&w)[4], const std::int32_t* x, IntVec (&dot)[Rows][4],
                                std::integer_sequence<int, R...>) {
        constexpr int low = Rows < 4 ? Rows : 4, high = Rows > 4 ? Rows - 4 : 1;
        const int8x16_t quads[2] = {load_quads<low>(x), load_quads<high>(x + (Rows > 4 ? 4 : 0))};
        (add_row<R % 4>(w, quads[R / 4], dot[R]), ...);
    }
    template <int Lane>
    static inline void add_row(const int8x16_t (&w)[4], int8x16_t quads, IntVec (&dot)[4]) {
        for (int v = 0; v < 4; ++v) dot[v] = (IntVec)vdotq_laneq_s32((int32x4_t)dot[v], w[v], quads, Lane);
    }
};

double burn_sdot(std::int64_t rounds) {
    constexpr int chains = 24;
    int32x4_t acc[chains] = {};
    int8x16_t x = vdupq_n_s8(1);
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
        for (auto& v : acc) v = vdotq_s32(v, x, x);
        __asm__ volatile("" : "+w"(x));
    }
    for (auto& v : acc) __asm__ volatile("" ::"w"(v));
    return chains * 16.0 * static_cast<double>(rounds);
}

}  // namespace

const DotKernels dot_neon_dot = {6,
                                 kPairWords,
                                 6,
                                 burn_f32,
                                 burn_sdot,
                                 bf16_widened<6, 24>,
                                 affine<SdotSums<8>, 6>,
                                 affine<SdotSums<4>, 6>,
                                 unpack4,
                                 interleave_rows,
                                 interleave_columns,
                                 round_rows_widened,
                                 quantise_row_quads};

}  // namespace dgemma::backend::cpu
#endif
