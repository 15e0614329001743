// Our own noise: every number is a function of (seed, block, attempt, step, purpose, position), so it depends
// on no thread, no batch mate, no canvas length and no order of asking (contract/generation.md 14.5).
#pragma once

#include "diffusion/noise.h"

namespace dgemma::diffusion {

class CounterNoise final : public NoiseSource {
  public:
    CounterNoise(std::uint64_t seed, int vocabulary) : seed_(seed), vocabulary_(vocabulary) {}

    Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) override;
    // One uniform number per position, looked up in the distribution laid out as argmax first, then the other
    // ids ascending. Where the number falls on the argmax, at temperature 1, the row is not read at all.
    Status draw(BlockKey key, int step, LogitRows& rows, float temperature,
                std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) override;
    Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) override;

  private:
    enum class Purpose : std::uint32_t { canvas, draw, renoise };
    [[nodiscard]] std::uint64_t bits(BlockKey key, int step, Purpose purpose, std::size_t position) const;
    void fill(BlockKey key, int step, Purpose purpose, std::span<std::int32_t> ids) const;

    std::uint64_t seed_;
    int vocabulary_;
};

}  // namespace dgemma::diffusion
