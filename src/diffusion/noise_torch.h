// The noise of torch's CPU generator (contract/generation.md 14.2). One stream for the whole request: a
// re-rolled block goes on where the first attempt ended.
#pragma once

#include <random>

#include "diffusion/noise.h"

namespace dgemma::diffusion {

// The generator itself: MT19937 and torch's ways to make numbers of its outputs.
class TorchRandom {
  public:
    explicit TorchRandom(std::uint64_t seed) : words_(static_cast<std::uint32_t>(seed)) {}

    std::uint32_t word() { return static_cast<std::uint32_t>(words_()); }
    // One element of randint(0, width): the output modulo width.
    std::int32_t below(std::uint32_t width);
    // One element of a tensor of Exp(1): two outputs, the high half first, of which 53 bits count.
    float exponential();
    // One row of multinomial(p, 1): the index with the largest p / q, q of Exp(1).
    std::int32_t multinomial(std::span<const float> p);
    // The outputs that a multinomial over `count` probabilities takes, unused.
    void skip_multinomial(std::size_t count) { words_.discard(2 * static_cast<unsigned long long>(count)); }

  private:
    std::mt19937 words_;
};

class TorchNoise final : public NoiseSource {
  public:
    TorchNoise(std::uint64_t seed, int vocabulary)
        : random_(seed), vocabulary_(static_cast<std::uint32_t>(vocabulary)) {}

    Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) override;
    // Uses up the outputs of every row, wanted or not, as the reference draws for all of them.
    Status draw(BlockKey key, int step, LogitRows& rows, float temperature,
                std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) override;
    Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) override;

  private:
    TorchRandom random_;
    std::uint32_t vocabulary_;
};

}  // namespace dgemma::diffusion
