// Dot products of AVX-512 with BF16 (VDPBF16PS) and VNNI (VPDPBUSD); the build compiles this file for that.
#if defined(__x86_64__)
#include <cstring>

#include <immintrin.h>

#include "backend/cpu/dot_kernels.h"

namespace dgemma::backend::cpu {
namespace {

// The chains begin apart, so that none can stand for another, and every loop over them is unrolled, so that
// they stay in registers.
double burn_bf16(std::int64_t rounds) {
    __m512 acc[24];
#pragma GCC unroll 24
    for (int c = 0; c < 24; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
    auto x = (__m512bh)_mm512_set1_epi32(0x3F803F80);
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
        for (auto& v : acc) v = _mm512_dpbf16_ps(v, x, x);
        __asm__ volatile("" : "+v"(x));
    }
#pragma GCC unroll 24
    for (auto& v : acc) __asm__ volatile("" ::"v"(v));
    return 24.0 * 32.0 * static_cast<double>(rounds);
}

double burn_bytes(std::int64_t rounds) {
    __m512i acc[24];
#pragma GCC unroll 24
    for (int c = 0; c < 24; ++c) acc[c] = _mm512_set1_epi32(c);
    __m512i x = _mm512_set1_epi32(0x01010101);
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
        for (auto& v : acc) v = _mm512_dpbusd_epi32(v, x, x);
        __asm__ volatile("" : "+v"(x));
    }
#pragma GCC unroll 24
    for (auto& v : acc) __asm__ volatile("" ::"v"(v));
    return 24.0 * 64.0 * static_cast<double>(rounds);
}

template <int Rows>
void bf16_rows(std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
               std::int64_t ldc, bool add) {
    __m512 acc[Rows][2];
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < 2; ++v)
            acc[r][v] = add ? _mm512_loadu_ps(c + r * ldc + v * 16) : _mm512_setzero_ps();
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
        const auto w0 = (__m512bh)_mm512_loadu_si512(tile + i * 32);
        const auto w1 = (__m512bh)_mm512_loadu_si512(tile + i * 32 + 16);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i * Rows + r]));
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, w0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, w1);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < 2; ++v) _mm512_storeu_ps(c + r * ldc + v * 16, acc[r][v]);
    }
}

void bf16(int rows, std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
          std::int64_t ldc, bool add) {
    switch (rows) {
        case 1:
            return bf16_rows<1>(pairs, a, tile, c, ldc, add);
        case 2:
            return bf16_rows<2>(pairs, a, tile, c, ldc, add);
        case 3:
            return bf16_rows<3>(pairs, a, tile, c, ldc, add);
        case 4:
            return bf16_rows<4>(pairs, a, tile, c, ldc, add);
        case 5:
            return bf16_rows<5>(pairs, a, tile, c, ldc, add);
        case 6:
            return bf16_rows<6>(pairs, a, tile, c, ldc, add);
        case 7:
            return bf16_rows<7>(pairs, a, tile, c, ldc, add);
        case 8:
            return bf16_rows<8>(pairs, a, tile, c, ldc, add);
        case 9:
            return bf16_rows<9>(pairs, a, tile, c, ldc, add);
        case 10:
            return bf16_rows<10>(pairs, a, tile, c, ldc, add);
        case 11:
            return bf16_rows<11>(pairs, a, tile, c, ldc, add);
        default:
            return bf16_rows<12>(pairs, a, tile, c, ldc, add);
    }
}

inline __m512 widen(const std::uint16_t* bf16_values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16_values))), 16));
}

// Groups of 32 are summed in whole numbers, then scaled into f32; a block of columns that shares the row's
// scale is summed before it is multiplied by it.
template <int Rows>
void affine8_rows(std::int64_t k, const BytePanel& a, const std::uint8_t* codes, const std::uint16_t* scales,
                  const std::uint16_t* biases, float* c, std::int64_t ldc) {
    for (std::int64_t block = 0; block * kByteBlock < k; ++block) {
        const std::int64_t first = block * (kByteBlock / 32);
        const std::int64_t end = (k < (block + 1) * kByteBlock ? k : (block + 1) * kByteBlock) / 32;
        __m512 sum[Rows][2];
        for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
        for (std::int64_t g = first; g < end; ++g) {
            __m512i dot[Rows][2];
            for (int r = 0; r < Rows; ++r) dot[r][0] = dot[r][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
            for (std::int64_t i = g * 8; i < g * 8 + 8; ++i) {
                const __m512i w0 = _mm512_loadu_si512(codes + i * 128);
                const __m512i w1 = _mm512_loadu_si512(codes + i * 128 + 64);
#pragma GCC unroll 6
                for (int r = 0; r < Rows; ++r) {
                    const __m512i x = _mm512_set1_epi32(a.codes[i * Rows + r]);
                    dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w0, x);
                    dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], w1, x);
                }
            }
            for (int v = 0; v < 2; ++v) {
                const __m512 s = widen(scales + g * 32 + v * 16);
                const __m512 b = widen(biases + g * 32 + v * 16);
#pragma GCC unroll 6
                for (int r = 0; r < Rows; ++r) {
                    sum[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][v]), s, sum[r][v]);
                    sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(a.sums[g * Rows + r]), b, sum[r][v]);
                }
            }
        }
        for (int r = 0; r < Rows; ++r) {
            const __m512 s = _mm512_set1_ps(a.scales[block * Rows + r]);
            for (int v = 0; v < 2; ++v) {
                float* to = c + r * ldc + v * 16;
                _mm512_storeu_ps(to, block == 0 ? _mm512_mul_ps(sum[r][v], s)
                                                : _mm512_fmadd_ps(sum[r][v], s, _mm512_loadu_ps(to)));
            }
        }
    }
}

void affine8(int rows, std::int64_t k, const BytePanel& a, const std::uint8_t* codes,
             const std::uint16_t* scales, const std::uint16_t* biases, float* c, std::int64_t ldc) {
    switch (rows) {
        case 1:
            return affine8_rows<1>(k, a, codes, scales, biases, c, ldc);
        case 2:
            return affine8_rows<2>(k, a, codes, scales, biases, c, ldc);
        case 3:
            return affine8_rows<3>(k, a, codes, scales, biases, c, ldc);
        case 4:
            return affine8_rows<4>(k, a, codes, scales, biases, c, ldc);
        case 5:
            return affine8_rows<5>(k, a, codes, scales, biases, c, ldc);
        default:
            return affine8_rows<6>(k, a, codes, scales, biases, c, ldc);
    }
}

void unpack4(std::int64_t k, const std::uint8_t* packed, std::uint8_t* codes) {
    const __m512i low = _mm512_set1_epi8(15);
    for (std::int64_t i = 0; i < k / 8; ++i) {
        for (int v = 0; v < 2; ++v) {
            const __m512i p = _mm512_loadu_si512(packed + i * 128 + v * 64);
            _mm512_storeu_si512(codes + (2 * i) * 128 + v * 64, _mm512_and_si512(p, low));
            _mm512_storeu_si512(codes + (2 * i + 1) * 128 + v * 64,
                                _mm512_and_si512(_mm512_srli_epi16(p, 4), low));
        }
    }
}

// 16 x 16 transpose of 32-bit elements.
inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int j = 0; j < 8; ++j) {
        t[2 * j] = _mm512_unpacklo_epi32(r[2 * j], r[2 * j + 1]);
        t[2 * j + 1] = _mm512_unpackhi_epi32(r[2 * j], r[2 * j + 1]);
    }
    for (int j = 0; j < 4; ++j) {
        r[4 * j] = _mm512_unpacklo_epi64(t[4 * j], t[4 * j + 2]);
        r[4 * j + 1] = _mm512_unpackhi_epi64(t[4 * j], t[4 * j + 2]);
        r[4 * j + 2] = _mm512_unpacklo_epi64(t[4 * j + 1], t[4 * j + 3]);
        r[4 * j + 3] = _mm512_unpackhi_epi64(t[4 * j + 1], t[4 * j + 3]);
    }
    for (int j = 0; j < 4; ++j) {
        t[j] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88);
        t[j + 4] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xdd);
        t[j + 8] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88);
        t[j + 12] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xdd);
    }
    for (int j = 0; j < 8; ++j) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
    }
}

void interleave_rows(const std::byte* rows, std::int64_t stride, int missing, std::int64_t pairs,
                     std::uint32_t* tile) {
    constexpr std::int64_t ahead =
        512;  // bytes: 32 rows are too many streams for a prefetcher of its own accord
    for (std::int64_t i = 0; i < pairs; i += 16) {
        const auto count = static_cast<unsigned>(pairs - i < 16 ? pairs - i : 16);
        const auto mask = static_cast<__mmask16>((1u << count) - 1u);
        for (int half = 0; half < 2; ++half) {
            __m512i r[16];
            for (int j = 0; j < 16; ++j) {
                const int row = half * 16 + j;
                const std::byte* from = rows + (row * stride + 2 * i) * 2;
                if (row < 32 - missing) {
                    _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
                    r[j] = _mm512_maskz_loadu_epi32(mask, from);
                } else {
                    r[j] = _mm512_setzero_si512();
                }
            }
            transpose(r);
            for (unsigned j = 0; j < count; ++j) _mm512_storeu_si512(tile + (i + j) * 32 + half * 16, r[j]);
        }
    }
}

void interleave_columns(const std::byte* rows, std::int64_t stride, std::int64_t pairs, std::uint32_t* tile) {
    // Words 0..31 of two rows -> pairs 0..15 and 16..31.
    alignas(64) static constexpr std::uint16_t first[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                            37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                            11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(first);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (std::int64_t i = 0; i < pairs; ++i) {
        const __m512i a = _mm512_loadu_si512(rows + 2 * i * stride * 2);
        const __m512i b = _mm512_loadu_si512(rows + (2 * i + 1) * stride * 2);
        _mm512_storeu_si512(tile + i * 32, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(tile + i * 32 + 16, _mm512_permutex2var_epi16(a, high, b));
    }
}

// The words of a panel's rows stand side by side: 16 pairs of all rows are rounded, then turned around in
// registers.
void round_rows(const float* const* x, std::int64_t k, int rows, std::uint32_t* panel) {
    const auto mask = [](std::int64_t n) {
        return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1u << n) - 1u);
    };
    const __mmask16 all_rows = mask(rows);
    constexpr std::int64_t ahead = 64;
    for (std::int64_t i = 0; i < k; i += 32) {
        const __mmask16 first = mask(k - i), second = mask(k - i - 16);
        __m512i r[16];
        for (int j = 0; j < 16; ++j) {
            if (j < rows) {
                const __m512 low = _mm512_maskz_loadu_ps(first, x[j] + i);
                const __m512 high = _mm512_maskz_loadu_ps(second, x[j] + i + 16);
                _mm_prefetch(reinterpret_cast<const char*>(x[j] + i + ahead), _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char*>(x[j] + i + ahead + 16), _MM_HINT_T0);
                r[j] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            } else {
                r[j] = _mm512_setzero_si512();
            }
        }
        transpose(r);
        const auto count = static_cast<int>(k - i < 32 ? (k - i) / 2 : 16);
        for (int j = 0; j < count; ++j) _mm512_mask_storeu_epi32(panel + (i / 2 + j) * rows, all_rows, r[j]);
    }
}

void quantise_row(const float* x, std::int64_t k, std::int64_t rows, std::int64_t r, std::int32_t* codes,
                  float* scales, float* sums) {
    for (std::int64_t begin = 0; begin < k; begin += kByteBlock) {
        const std::int64_t end = begin + kByteBlock < k ? begin + kByteBlock : k;
        // Sizes compare as their bits do, and a NaN is larger than infinity: it is not lost in the maximum.
        __m512i top = _mm512_setzero_si512();
        const __m512i size = _mm512_set1_epi32(0x7FFFFFFF);
        for (std::int64_t i = begin; i < end; i += 16)
            top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_loadu_si512(x + i), size));
        const std::int32_t most = _mm512_reduce_max_epi32(top);
        float largest;
        std::memcpy(&largest, &most, 4);
        const float scale = largest / 127.0f;
        const __m512 inverse = _mm512_set1_ps(bytes_per_unit(largest));
        const __m512i kept = _mm512_set1_epi32(__builtin_isfinite(largest) ? -1 : 0);
        scales[begin / kByteBlock * rows + r] = scale;
        for (std::int64_t g = begin; g < end; g += 32) {
            const __m512i low =
                _mm512_and_si512(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + g), inverse)), kept);
            const __m512i high = _mm512_and_si512(
                _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + g + 16), inverse)), kept);
            sums[g / 32 * rows + r] =
                static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(low, high)));
            alignas(16) std::int32_t quads[8];
            _mm_store_si128(reinterpret_cast<__m128i*>(quads), _mm512_cvtsepi32_epi8(low));
            _mm_store_si128(reinterpret_cast<__m128i*>(quads + 4), _mm512_cvtsepi32_epi8(high));
            for (int j = 0; j < 8; ++j) codes[(g / 4 + j) * rows + r] = quads[j];
        }
    }
}

}  // namespace

const DotKernels dot_avx512 = {12,          1,       6,       burn_bf16,       burn_bytes,         bf16,
                               affine8,     affine8, unpack4, interleave_rows, interleave_columns, round_rows,
                               quantise_row};

}  // namespace dgemma::backend::cpu
#endif
