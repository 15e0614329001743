// Products for Arm with I8MM (USMMLA) and BF16 (BFMMLA); the build compiles this file for that. Both multiply
// two columns of the weight with two rows: panels hold rows two by two, a last odd one by itself.
#if defined(__aarch64__)
#include <arm_neon.h>

#define DGEMMA_LANES 4
#include "backend/cpu/dot_packing.inl"

namespace dgemma::backend::cpu {
namespace {

constexpr int kRows = 8;

inline IntVec round_to_int(Vec x) { return (IntVec)vcvtnq_s32_f32((float32x4_t)x); }

// Words w and w + 1 (w even) of two rows, [2 rows][2 words]; of a row by itself: twice the same. `words`: of
// a row. `pair`: of rows.
template <int Rows>
inline uint32x4_t two_rows(const std::uint32_t* panel, std::int64_t words, int pair, std::int64_t w) {
    const std::uint32_t* rows = panel + 2 * pair * words;
    if (2 * pair + 1 < Rows) return vld1q_u32(rows + 2 * w);
    const uint32x2_t one = vld1_u32(rows + w);
    return vcombine_u32(one, one);
}

// Where word `w` of row r of such a panel stands; `words`: of a row. A last word without a partner stands
// behind the others, row after row.
inline std::int64_t place(std::int64_t words, std::int64_t rows, std::int64_t r, std::int64_t w) {
    const std::int64_t begin = r / 2 * 2 * words;
    if (r % 2 == 0 && r + 1 == rows) return begin + w;
    if (w + 1 == words && words % 2 == 1) return begin + 2 * w + r % 2;
    return begin + w / 2 * 4 + r % 2 * 2 + w % 2;
}

// ------------------------------------------------------------------------------ bf16

void round_rows(const float* const* x, std::int64_t k, int rows, std::uint32_t* panel) {
    for (int r = 0; r < rows; ++r) {
        for (std::int64_t w = 0; w < k / 2; ++w)
            panel[place(k / 2, rows, r, w)] = rounded_bits(x[r][2 * w]) >> 16 | rounded_bits(x[r][2 * w + 1]);
    }
}

// Eight columns of a tile. A sum is {column 0, row 0}, {0, 1}, {1, 0}, {1, 1}.
template <int Rows>
void bf16_columns(std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
                  std::int64_t ldc, bool add) {
    constexpr int row_pairs = (Rows + 1) / 2;
    float32x4_t acc[row_pairs][4] = {};
    const auto row_of = [](int p, int i) { return 2 * p + (2 * p + 1 < Rows ? i : 0); };
    for (int p = 0; p < row_pairs && add; ++p) {
        for (int v = 0; v < 2; ++v) {
            const float32x4_t even = vld1q_f32(c + row_of(p, 0) * ldc + v * 4);
            const float32x4_t odd = vld1q_f32(c + row_of(p, 1) * ldc + v * 4);
            acc[p][2 * v] = vzip1q_f32(even, odd);
            acc[p][2 * v + 1] = vzip2q_f32(even, odd);
        }
    }
    const auto step = [&](const uint32x4_t(&w)[4], int p, uint32x4_t x) {
        for (int j = 0; j < 4; ++j)
            acc[p][j] = vbfmmlaq_f32(acc[p][j], vreinterpretq_bf16_u32(w[j]), vreinterpretq_bf16_u32(x));
    };
    std::int64_t i = 0;
    for (; i + 2 <= pairs; i += 2) {
        uint32x4_t w[4];
        for (int v = 0; v < 2; ++v) {
            const uint32x4_t here = vld1q_u32(tile + i * 32 + v * 4);
            const uint32x4_t next = vld1q_u32(tile + (i + 1) * 32 + v * 4);
            w[2 * v] = vzip1q_u32(here, next);
            w[2 * v + 1] = vzip2q_u32(here, next);
        }
        for (int p = 0; p < row_pairs; ++p) step(w, p, two_rows<Rows>(a, pairs, p, i));
    }
    if (i < pairs) {  // the last pair, and zeros in the place of its partner
        const uint32x4_t none = vdupq_n_u32(0);
        uint32x4_t w[4];
        for (int v = 0; v < 2; ++v) {
            const uint32x4_t here = vld1q_u32(tile + i * 32 + v * 4);
            w[2 * v] = vzip1q_u32(here, none);
            w[2 * v + 1] = vzip2q_u32(here, none);
        }
        for (int p = 0; p < row_pairs; ++p) {
            const std::uint32_t* last = a + 2 * p * pairs + (2 * p + 1 < Rows ? 2 * i : i);
            uint32x4_t x = vdupq_n_u32(0);
            x = vsetq_lane_u32(last[0], x, 0);
            x = vsetq_lane_u32(last[2 * p + 1 < Rows ? 1 : 0], x, 2);
            step(w, p, x);
        }
    }
    for (int p = 0; p < row_pairs; ++p) {
        for (int v = 0; v < 2; ++v) {
            vst1q_f32(c + 2 * p * ldc + v * 4, vuzp1q_f32(acc[p][2 * v], acc[p][2 * v + 1]));
            if (2 * p + 1 < Rows)
                vst1q_f32(c + (2 * p + 1) * ldc + v * 4, vuzp2q_f32(acc[p][2 * v], acc[p][2 * v + 1]));
        }
    }
}

template <int... I>
void bf16_of_rows(std::integer_sequence<int, I...>, int rows, std::int64_t pairs, const std::uint32_t* a,
                  const std::uint32_t* tile, float* c, std::int64_t ldc, bool add) {
    static constexpr decltype(&bf16_columns<1>) of_rows[] = {bf16_columns<I + 1>...};
    for (int column = 0; column < 32; column += 8)
        of_rows[rows - 1](pairs, a, tile + column, c + column, ldc, add);
}
void bf16(int rows, std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
          std::int64_t ldc, bool add) {
    bf16_of_rows(std::make_integer_sequence<int, kRows>(), rows, pairs, a, tile, c, ldc, add);
}

double burn_bfmmla(std::int64_t rounds) {
    constexpr int chains = 24;
    float32x4_t acc[chains] = {};
    volatile std::uint32_t ones = 0x3F803F80;  // a constant would be loaded by an instruction of another set
    bfloat16x8_t x = vreinterpretq_bf16_u32(vdupq_n_u32(ones));
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
        for (auto& v : acc) v = vbfmmlaq_f32(v, x, x);
        __asm__ volatile("" : "+w"(x));
    }
    for (auto& v : acc) __asm__ volatile("" ::"w"(v));
    return chains * 16.0 * static_cast<double>(rounds);
}

// ------------------------------------------------------------------------------ bytes

void quantise_row(const float* x, std::int64_t k, std::int64_t rows, std::int64_t r, std::int32_t* codes,
                  float* scales, float* sums) {
    quantise(x, k, rows, scales + r, sums + r,
             [=](std::int64_t quad, std::int32_t word) { codes[place(k / 4, rows, r, quad)] = word; });
}

struct UsmmlaSums {
    static constexpr int vectors(int) { return 2; }

    template <int Rows>
    static inline void group(std::int64_t k, const BytePanel& a, std::int64_t g, const std::uint8_t* codes,
                             IntVec (&dot)[Rows][2]) {
        constexpr int row_pairs = (Rows + 1) / 2;
        const auto* panel = reinterpret_cast<const std::uint32_t*>(a.codes);
        int32x4_t acc[row_pairs][4] = {};
#pragma GCC unroll 4
        for (std::int64_t q = g * 8; q < g * 8 + 8; q += 2) {
            uint8x16_t w[4];
            for (int v = 0; v < 2; ++v) {
                const uint32x4_t here = vreinterpretq_u32_u8(vld1q_u8(codes + q * 128 + v * 16));
                const uint32x4_t next = vreinterpretq_u32_u8(vld1q_u8(codes + (q + 1) * 128 + v * 16));
                w[2 * v] = vreinterpretq_u8_u32(vzip1q_u32(here, next));
                w[2 * v + 1] = vreinterpretq_u8_u32(vzip2q_u32(here, next));
            }
            for (int p = 0; p < row_pairs; ++p) {
                const int8x16_t x = vreinterpretq_s8_u32(two_rows<Rows>(panel, k / 4, p, q));
                for (int j = 0; j < 4; ++j) acc[p][j] = vusmmlaq_s32(acc[p][j], w[j], x);
            }
        }
        for (int p = 0; p < row_pairs; ++p) {
            for (int v = 0; v < 2; ++v) {
                dot[2 * p][v] = (IntVec)vuzp1q_s32(acc[p][2 * v], acc[p][2 * v + 1]);
                if (2 * p + 1 < Rows)
                    dot[2 * p + 1][v] = (IntVec)vuzp2q_s32(acc[p][2 * v], acc[p][2 * v + 1]);
            }
        }
    }
};

double burn_usmmla(std::int64_t rounds) {
    constexpr int chains = 24;
    int32x4_t acc[chains] = {};
    uint8x16_t x = vdupq_n_u8(1);
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
        for (auto& v : acc) v = vusmmlaq_s32(v, x, vreinterpretq_s8_u8(x));
        __asm__ volatile("" : "+w"(x));
    }
    for (auto& v : acc) __asm__ volatile("" ::"w"(v));
    return chains * 32.0 * static_cast<double>(rounds);
}

}  // namespace

const DotKernels dot_neon_i8mm_bf16 = {kRows,
                                       1,
                                       kRows,
                                       burn_bfmmla,
                                       burn_usmmla,
                                       bf16,
                                       affine<UsmmlaSums, kRows>,
                                       affine<UsmmlaSums, kRows>,
                                       unpack4,
                                       interleave_rows,
                                       interleave_columns,
                                       round_rows,
                                       quantise_row};

}  // namespace dgemma::backend::cpu
#endif
