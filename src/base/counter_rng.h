// Random numbers as a function of a key: no state, no order of drawing.
#pragma once

#include <array>
#include <cstdint>

namespace dgemma {

// Philox-4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011). The same (key, counter) gives the same four words on every device and in every thread.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
                   static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
        key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    }
    return counter;
}

}  // namespace dgemma
