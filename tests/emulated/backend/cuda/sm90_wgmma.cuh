// The matrix instruction for bf16 on the emulated machine. Sums are exact but for a rounding to f32.
#pragma once

#include <limits>

#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

// Where a descriptor's matrix has byte `byte` of a row: rows of 128 bytes in groups of eight, swizzled by
// address.
inline const std::uint8_t* byte_of(std::uint64_t descriptor, int row, int byte) {
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3FFF) != 1024 / 16) emulated::fail("another layout");
    const auto start = static_cast<std::uint32_t>(descriptor & 0x3FFF) * 16;
    const std::uint32_t at =
        swizzled(start + static_cast<std::uint32_t>(row / 8 * 1024 + row % 8 * 128 + byte));
    if (emulated::machine.current->block->ordinary[at / 16])
        emulated::fail("a product of what ordinary copies brought, without a fence");
    return shared_pointer(at);
}
// d (+)= a b over `Depth` k, when somebody waits for it. element(descriptor, row, k).
template <int N, int Depth, class Element>
void multiply_later(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool keep, Element element) {
    if (!keep) std::fill(d, d + N / 2, std::numeric_limits<float>::quiet_NaN());
    emulated::machine.current->products.emplace_back([to = &d[0], a, b, keep, element] {
        const int t = static_cast<int>(emulated::machine.current->number) % 128, lane = t % 32;
        for (int i = 0; i < N / 2; ++i) {
            const int row = t / 32 * 16 + i % 4 / 2 * 8 + lane / 4, n = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = keep ? to[i] : 0;
            for (int k = 0; k < Depth; ++k) sum += static_cast<double>(element(a, row, k)) * element(b, n, k);
            to[i] = static_cast<float>(sum);
        }
    });
}

template <int N, bool ByRows>
struct WarpgroupMultiply {
    static void run(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool keep) {
        if (ByRows) emulated::fail("a product by rows");
        multiply_later<N, 16>(d, a, b, keep, [](std::uint64_t descriptor, int row, int k) {
            std::uint16_t bits;
            std::memcpy(&bits, byte_of(descriptor, row, 2 * k), 2);
            return bf16_to_f32(bits);
        });
    }
};

}  // namespace dgemma::backend::cuda
