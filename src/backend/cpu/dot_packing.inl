// What the tables of dot products have in common: the packing of operands, and how whole-number sums of codes
// become f32. The including file says how wide a vector is (DGEMMA_LANES, floats) and gives `round_to_int`.
#pragma once

#include <cstring>
#include <utility>

#include "backend/cpu/dot_kernels.h"

namespace dgemma::backend::cpu {
namespace {

constexpr int kLanes = DGEMMA_LANES;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));
typedef std::uint64_t LongVec __attribute__((vector_size(kLanes * 4)));

template <class V>
inline V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
template <class V>
inline void store(void* p, V v) {
    std::memcpy(p, &v, sizeof(v));
}

// To the nearest whole number, ties to even, as the machine's own conversion does it.
IntVec round_to_int(Vec x);

inline Vec widen(const std::uint16_t* bf16_values) {
    return (Vec)(__builtin_convertvector(load<HalfVec>(bf16_values), UintVec) << 16);
}

inline std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline std::uint32_t rounded_bits(float x) {
    const std::uint32_t bits = bits_of(x);
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return (nan ? bits | 0x00400000u : bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
}

// ------------------------------------------------------------------------------ weights

void interleave_rows(const std::byte* rows, std::int64_t stride, int missing, std::int64_t pairs,
                     std::uint32_t* tile) {
    typedef std::uint32_t Four __attribute__((vector_size(16)));
    constexpr std::int64_t ahead = 512;  // bytes: 32 rows are too many streams for a prefetcher
    std::int64_t i = 0;
    for (; i + 4 <= pairs; i += 4) {
        for (int row = 0; row < 32; row += 4) {
            Four r[4];
            for (int j = 0; j < 4; ++j) {
                const std::byte* from = rows + ((row + j) * stride + 2 * i) * 2;
                if (row + j < 32 - missing) {
                    __builtin_prefetch(from + ahead);
                    r[j] = load<Four>(from);
                } else {
                    r[j] = Four{};
                }
            }
            const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
            const Four b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
            const Four c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
            const Four d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
            store(tile + i * 32 + row, __builtin_shufflevector(a, c, 0, 1, 4, 5));
            store(tile + (i + 1) * 32 + row, __builtin_shufflevector(a, c, 2, 3, 6, 7));
            store(tile + (i + 2) * 32 + row, __builtin_shufflevector(b, d, 0, 1, 4, 5));
            store(tile + (i + 3) * 32 + row, __builtin_shufflevector(b, d, 2, 3, 6, 7));
        }
    }
    for (; i < pairs; ++i) {
        for (int row = 0; row < 32; ++row) {
            tile[i * 32 + row] =
                row < 32 - missing ? load<std::uint32_t>(rows + (row * stride + 2 * i) * 2) : 0u;
        }
    }
}

void interleave_columns(const std::byte* rows, std::int64_t stride, std::int64_t pairs, std::uint32_t* tile) {
    typedef std::uint16_t Eight __attribute__((vector_size(16)));
    for (std::int64_t i = 0; i < pairs; ++i) {
        for (int c = 0; c < 32; c += 8) {
            const auto even = load<Eight>(rows + (2 * i * stride + c) * 2);
            const auto odd = load<Eight>(rows + ((2 * i + 1) * stride + c) * 2);
            store(tile + i * 32 + c, __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
            store(tile + i * 32 + c + 4, __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
        }
    }
}

void unpack4(std::int64_t k, const std::uint8_t* packed, std::uint8_t* codes) {
    typedef std::uint8_t Bytes __attribute__((vector_size(kLanes * 4)));
    for (std::int64_t i = 0; i < k / 8; ++i) {
        for (int v = 0; v < 32 / kLanes; ++v) {
            const auto p = load<Bytes>(packed + i * 128 + v * kLanes * 4);
            store(codes + 2 * i * 128 + v * kLanes * 4, p & 15);
            store(codes + (2 * i + 1) * 128 + v * kLanes * 4, p >> 4);
        }
    }
}

// ------------------------------------------------------------------------------ bytes

// A row's blocks as codes: emit(quad, word) gets four of them, element 4 * quad in the low byte.
template <class Emit>
inline void quantise(const float* x, std::int64_t k, std::int64_t rows, float* scales, float* sums,
                     Emit emit) {
    UintVec place{};
    for (int l = 0; l < kLanes; ++l) place[l] = static_cast<std::uint32_t>(l % 4 * 8);
    for (std::int64_t begin = 0; begin < k; begin += kByteBlock) {
        const std::int64_t end = begin + kByteBlock < k ? begin + kByteBlock : k;
        // Sizes compare as their bits do, and a NaN is larger than infinity: it is not lost in the maximum.
        IntVec top{};
        for (std::int64_t i = begin; i < end; i += kLanes) {
            const IntVec size = load<IntVec>(x + i) & 0x7FFFFFFF;
            top = size > top ? size : top;
        }
        std::int32_t most = top[0];
        for (int l = 1; l < kLanes; ++l) most = top[l] > most ? top[l] : most;
        float largest;
        std::memcpy(&largest, &most, 4);
        scales[begin / kByteBlock * rows] = largest / 127.0f;
        const float inverse = bytes_per_unit(largest);
        const IntVec kept = IntVec{} - (__builtin_isfinite(largest) ? 1 : 0);
        for (std::int64_t g = begin; g < end; g += 32) {
            IntVec sum{};
            for (int i = 0; i < 32; i += kLanes) {
                const IntVec codes = round_to_int(load<Vec>(x + g + i) * inverse) & kept;
                sum += codes;
                // Each byte to its place within a word, then two lanes together and two more.
                const auto two = (LongVec)((UintVec)(codes & 255) << place);
                const UintVec four = (UintVec)(two | two >> 32);
                for (int q = 0; q < kLanes / 4; ++q) {
                    emit((g + i) / 4 + q, static_cast<std::int32_t>(four[4 * q] | four[4 * q + 2]));
                }
            }
            std::int32_t total = 0;
            for (int l = 0; l < kLanes; ++l) total += sum[l];
            sums[g / 32 * rows] = static_cast<float>(total);
        }
    }
}

// Codes [k / 4][rows]: a word for four of a row.
[[maybe_unused]] void quantise_row_quads(const float* x, std::int64_t k, std::int64_t rows, std::int64_t r,
                                         std::int32_t* codes, float* scales, float* sums) {
    quantise(x, k, rows, scales + r, sums + r,
             [=](std::int64_t quad, std::int32_t word) { codes[quad * rows + r] = word; });
}

// A product with affine codes, `Sums::vectors(rows)` vectors of columns at a time. The including file's
//   Sums::group<Rows>(k, a, g, codes, dot)
// gives the whole-number sums of group g, of the columns whose codes begin at `codes`; they are scaled into
// f32, and a block of columns that shares the row's scale is summed before it is multiplied by it.
template <class Sums, int Rows>
void affine_rows(std::int64_t k, const BytePanel& a, const std::uint8_t* codes, const std::uint16_t* scales,
                 const std::uint16_t* biases, float* c, std::int64_t ldc) {
    constexpr int vectors = Sums::vectors(Rows);
    for (int column = 0; column < 32; column += vectors * kLanes) {
        for (std::int64_t block = 0; block * kByteBlock < k; ++block) {
            const std::int64_t first = block * (kByteBlock / 32);
            const std::int64_t end = (k < (block + 1) * kByteBlock ? k : (block + 1) * kByteBlock) / 32;
            Vec sum[Rows][vectors]{};
            for (std::int64_t g = first; g < end; ++g) {
                IntVec dot[Rows][vectors];
                Sums::template group<Rows>(k, a, g, codes + column * 4, dot);
                for (int v = 0; v < vectors; ++v) {
                    const Vec s = widen(scales + g * 32 + column + v * kLanes);
                    const Vec b = widen(biases + g * 32 + column + v * kLanes);
                    for (int r = 0; r < Rows; ++r) {
                        sum[r][v] = __builtin_convertvector(dot[r][v], Vec) * s + sum[r][v];
                        sum[r][v] = a.sums[g * Rows + r] * b + sum[r][v];
                    }
                }
            }
            for (int r = 0; r < Rows; ++r) {
                const float s = a.scales[block * Rows + r];
                for (int v = 0; v < vectors; ++v) {
                    float* to = c + r * ldc + column + v * kLanes;
                    store(to, block == 0 ? sum[r][v] * s : sum[r][v] * s + load<Vec>(to));
                }
            }
        }
    }
}

template <class Sums, int... I>
void affine_of_rows(std::integer_sequence<int, I...>, int rows, std::int64_t k, const BytePanel& a,
                    const std::uint8_t* codes, const std::uint16_t* scales, const std::uint16_t* biases,
                    float* c, std::int64_t ldc) {
    static constexpr decltype(&affine_rows<Sums, 1>) of_rows[] = {affine_rows<Sums, I + 1>...};
    of_rows[rows - 1](k, a, codes, scales, biases, c, ldc);
}
template <class Sums, int MaxRows>
void affine(int rows, std::int64_t k, const BytePanel& a, const std::uint8_t* codes,
            const std::uint16_t* scales, const std::uint16_t* biases, float* c, std::int64_t ldc) {
    affine_of_rows<Sums>(std::make_integer_sequence<int, MaxRows>(), rows, k, a, codes, scales, biases, c,
                         ldc);
}

}  // namespace
}  // namespace dgemma::backend::cpu
