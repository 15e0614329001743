// The matrix instruction for E4M3 on the emulated machine. Sums are exact but for a rounding to f32.
#pragma once

#include <limits>

#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

// What a descriptor's matrix holds at (row, k): rows of 128 bytes in groups of eight, swizzled by address.
inline float element_of(std::uint64_t descriptor, int row, int k) {
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3FFF) != 1024 / 16) emulated::fail("another layout");
    const auto start = static_cast<std::uint32_t>(descriptor & 0x3FFF) * 16;
    const std::uint32_t at = swizzled(start + static_cast<std::uint32_t>(row / 8 * 1024 + row % 8 * 128 + k));
    if (emulated::machine.current->block->ordinary[at / 16])
        emulated::fail("a product of what ordinary copies brought, without a fence");
    return e4m3_to_f32(*shared_pointer(at));
}

template <int N>
struct WarpgroupMultiplyE4m3 {
    static void run(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool keep) {
        if (!keep) std::fill(d, d + N / 2, std::numeric_limits<float>::quiet_NaN());
        emulated::machine.current->products.emplace_back([to = &d[0], a, b, keep] {
            const int t = static_cast<int>(emulated::machine.current->number) % 128, lane = t % 32;
            for (int i = 0; i < N / 2; ++i) {
                const int row = t / 32 * 16 + i % 4 / 2 * 8 + lane / 4, n = i / 4 * 8 + lane % 4 * 2 + i % 2;
                double sum = keep ? to[i] : 0;
                for (int k = 0; k < 32; ++k)
                    sum += static_cast<double>(element_of(a, row, k)) * element_of(b, n, k);
                to[i] = static_cast<float>(sum);
            }
        });
    }
};
// Named by products of bf16, which are not run here.
template <int N, bool ByRows>
struct WarpgroupMultiply {
    static void run(float (&)[N / 2], std::uint64_t, std::uint64_t, bool) {
        emulated::fail("a product of bf16");
    }
};

}  // namespace dgemma::backend::cuda
