// bf16 products of machines without an instruction for them: the tile's numbers are widened to f32 in
// registers, which costs less than to expand the whole tile in memory first.
#pragma once

#include "backend/cpu/dot_packing.inl"

namespace dgemma::backend::cpu {
namespace {

// Panels of these tables hold a row's values as f32 on the bf16 grid, [k][rows]: a word for each, two a pair.
constexpr int kPairWords = 2;

double burn_f32(std::int64_t rounds) {
    constexpr int chains = 12;
    volatile float one = 1.0f;
    volatile float small = 1e-9f;
    const Vec x = Vec{} + one;
    const Vec y = Vec{} + small;
    Vec acc[chains];
    // Chains that began alike would be merged into one.
    for (int c = 0; c < chains; ++c) acc[c] = y * static_cast<float>(c);
    for (std::int64_t i = 0; i < rounds; ++i) {
        for (auto& v : acc) v = v * x + y;
    }
    float sum = 0;
    for (auto& v : acc) sum += v[0];
    __asm__ volatile("" ::"r"(&sum) : "memory");
    return static_cast<double>(chains) * kLanes * static_cast<double>(rounds);
}

// Columns [0, Vectors * lanes) of a tile. The odd element of a pair is added before the even one, as
// VDPBF16PS does it; products of two bf16 are exact in f32, so the two agree in every bit.
template <int Rows, int Vectors>
inline void widened_block(std::int64_t pairs, const float* a, const std::uint32_t* tile, float* c,
                          std::int64_t ldc, bool add) {
    Vec acc[Rows][Vectors];
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) acc[r][v] = add ? load<Vec>(c + r * ldc + v * kLanes) : Vec{};
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
        Vec w[Vectors];
        for (int v = 0; v < Vectors; ++v)
            w[v] = (Vec)(load<UintVec>(tile + i * 32 + v * kLanes) & 0xFFFF0000u);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) acc[r][v] += a[(2 * i + 1) * Rows + r] * w[v];
        }
        for (int v = 0; v < Vectors; ++v) w[v] = (Vec)(load<UintVec>(tile + i * 32 + v * kLanes) << 16);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) acc[r][v] += a[2 * i * Rows + r] * w[v];
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) store(c + r * ldc + v * kLanes, acc[r][v]);
    }
}

// Few rows take more of the tile's columns at a time: enough sums in flight to hide the additions' latency.
template <int Rows, int Most>
void widened_rows(std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
                  std::int64_t ldc, bool add) {
    constexpr int all = 32 / kLanes;
    constexpr int half = Rows * all <= Most ? all : all / 2;
    constexpr int vectors = Rows * half <= Most ? half : half / 2;
    for (int v = 0; v < all; v += vectors) {
        widened_block<Rows, vectors>(pairs, reinterpret_cast<const float*>(a), tile + v * kLanes,
                                     c + v * kLanes, ldc, add);
    }
}

template <int Most, int... I>
void bf16_of_rows(std::integer_sequence<int, I...>, int rows, std::int64_t pairs, const std::uint32_t* a,
                  const std::uint32_t* tile, float* c, std::int64_t ldc, bool add) {
    static constexpr decltype(&widened_rows<1, Most>) of_rows[] = {widened_rows<I + 1, Most>...};
    of_rows[rows - 1](pairs, a, tile, c, ldc, add);
}
// For panels of up to MaxRows rows on a machine whose registers hold `Most` vectors of sums.
template <int MaxRows, int Most>
void bf16_widened(int rows, std::int64_t pairs, const std::uint32_t* a, const std::uint32_t* tile, float* c,
                  std::int64_t ldc, bool add) {
    bf16_of_rows<Most>(std::make_integer_sequence<int, MaxRows>(), rows, pairs, a, tile, c, ldc, add);
}

void round_rows_widened(const float* const* x, std::int64_t k, int rows, std::uint32_t* panel) {
    for (int r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < k; ++i) panel[i * rows + r] = rounded_bits(x[r][i]);
    }
}

}  // namespace
}  // namespace dgemma::backend::cpu
