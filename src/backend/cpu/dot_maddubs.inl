// Byte products of x86 without VNNI: VPMADDUBSW adds two products of an unsigned and a signed byte into 16
// bits. A code of 4 bits leaves room there for a whole group of 32; a code of 8 bits goes through in halves,
// as its bare product would not fit. The including file gives `madd_bytes` and
// `madd_halves`.
#pragma once

#include "backend/cpu/dot_packing.inl"

namespace dgemma::backend::cpu {
namespace {

typedef std::int16_t ShortVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t UshortVec __attribute__((vector_size(kLanes * 4)));

// Per 16 bits: the sum of two products, codes unsigned, x signed.
ShortVec madd_bytes(ShortVec codes, ShortVec x);
// Per 32 bits: the sum of two products.
IntVec madd_halves(ShortVec a, ShortVec b);

// Sums of a group for codes of `Bits` bits; panels [k / 4][rows].
template <int Bits, int Vectors>
struct MaddubsSums {
    static constexpr int vectors(int rows) {  // of columns at a time: twice as many for half the rows
        return rows <= 3 && 2 * Vectors * kLanes <= 32 ? 2 * Vectors : Vectors;
    }

    template <int Rows>
    static inline void group(std::int64_t, const BytePanel& a, std::int64_t g, const std::uint8_t* codes,
                             IntVec (&dot)[Rows][vectors(Rows)]) {
        constexpr int width = vectors(Rows);
        const std::int32_t* x = a.codes + g * 8 * Rows;
        codes += g * 8 * 128;
        ShortVec low[Rows][width]{}, high[Rows][width]{};  // at most 8 * 2 * 15 * 127 = 30,480 each
// GCC 12 would put off the additions of an unrolled loop and spill its products.
#pragma GCC unroll 1
        for (int q = 0; q < 8; ++q) {
            ShortVec w[width], w_high[width];
            for (int v = 0; v < width; ++v) {
                w[v] = load<ShortVec>(codes + q * 128 + v * kLanes * 4);
                if (Bits == 8) {
                    w_high[v] = (ShortVec)((UshortVec)w[v] >> 4) & 0x0F0F;
                    w[v] &= 0x0F0F;
                }
            }
            for (int r = 0; r < Rows; ++r) {
                const auto four = (ShortVec)(IntVec{} + x[q * Rows + r]);
                for (int v = 0; v < width; ++v) {
                    low[r][v] += madd_bytes(w[v], four);
                    if (Bits == 8) high[r][v] += madd_bytes(w_high[v], four);
                }
            }
        }
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < width; ++v) {
                dot[r][v] = madd_halves(low[r][v], ShortVec{} + 1);
                if (Bits == 8) dot[r][v] += madd_halves(high[r][v], ShortVec{} + 16);
            }
        }
    }
};

double burn_maddubs(std::int64_t rounds) {
    constexpr int chains = 8;
    ShortVec acc[chains]{};
    ShortVec x[4] = {ShortVec{} + 1, ShortVec{} + 2, ShortVec{} + 3, ShortVec{} + 4};
    for (std::int64_t i = 0; i < rounds; ++i) {
        // Each chain multiplies another pair, so that no product can stand for two.
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) acc[c] += madd_bytes(x[c % 4], x[(c % 4 + 1 + c / 4) % 4]);
        for (auto& v : x) __asm__ volatile("" : "+v"(v));
    }
    for (auto& v : acc) __asm__ volatile("" ::"v"(v));
    return static_cast<double>(chains) * kLanes * 4.0 * static_cast<double>(rounds);
}

}  // namespace
}  // namespace dgemma::backend::cpu
