// The noise of MLX (contract/generation.md 14.3): Threefry-2x32, one subkey for each random operation. One
// chain of keys for the whole request: a re-rolled block goes on where the first attempt ended.
#pragma once

#include <array>

#include "diffusion/noise.h"

namespace dgemma::diffusion {

using ThreefryKey = std::array<std::uint32_t, 2>;

// Twenty rounds of Threefry-2x32 (Salmon, Moraes, Dror, Shaw, SC 2011).
std::array<std::uint32_t, 2> threefry2x32(ThreefryKey key, std::array<std::uint32_t, 2> counter);

// The chain of keys and MLX's ways to make numbers of a key.
class MlxRandom {
  public:
    explicit MlxRandom(std::uint64_t seed)
        : state_{static_cast<std::uint32_t>(seed >> 32), static_cast<std::uint32_t>(seed)} {}

    // The subkey of the next operation.
    ThreefryKey next();
    [[nodiscard]] ThreefryKey state() const { return state_; }

    // Word i of bits(key, count). Which counters a word is made of depends on the count.
    static std::uint32_t word(ThreefryKey key, std::uint64_t count, std::uint64_t i);
    // A word as a number in [0, 1).
    static float uniform(std::uint32_t word);
    // randint(0, width) of ids.size() elements.
    static void randint(ThreefryKey key, int width, std::span<std::int32_t> ids);
    // Row i of categorical over logits [rows, logits.size()]: the argmax of Gumbel noise plus logits.
    static std::int32_t categorical_row(ThreefryKey key, std::uint64_t rows, std::uint64_t i,
                                        std::span<const float> logits);

  private:
    ThreefryKey state_;
};

class MlxNoise final : public NoiseSource {
  public:
    MlxNoise(std::uint64_t seed, int vocabulary) : random_(seed), vocabulary_(vocabulary) {}

    Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) override;
    Status draw(BlockKey key, int step, LogitRows& rows, float temperature,
                std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) override;
    Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) override;
    [[nodiscard]] bool draws_at_last_step() const override { return false; }

  private:
    MlxRandom random_;
    int vocabulary_;
};

}  // namespace dgemma::diffusion
