// Where the random ids of a canvas and the drawn tokens come from (contract/generation.md 14).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/row_stats.h"
#include "diffusion/options.h"

namespace dgemma::diffusion {

// Which canvas is being denoised: the block of the reply, and how often it was begun anew.
struct BlockKey {
    int block = 0;
    int attempt = 0;
};

// A source hands out ids in the order of its reference, so a caller asks in this order and for nothing it
// does not use: initial_canvas once for a block; then for each step draw, where tokens are drawn at all, and
// after it renoise. Steps count from 0.
class NoiseSource {
  public:
    virtual ~NoiseSource() = default;

    // Uniform ids for the whole canvas, `ids` [canvas].
    virtual Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) = 0;

    // One categorical draw from softmax(zt / temperature) for each position i with wanted[i]; `ids` [canvas]
    // is written there, and may be written elsewhere. temperature > 0, every row finite. Reads no more rows
    // than it needs: a row may cost a copy from a device.
    virtual Status draw(BlockKey key, int step, LogitRows& rows, float temperature,
                        std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) = 0;

    // Uniform ids for the whole canvas, for the positions that the step did not keep.
    virtual Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) = 0;

    // False where the reference draws nothing at the last step (n = 1).
    [[nodiscard]] virtual bool draws_at_last_step() const { return true; }
};

// The source of one request, for ids in [0, vocabulary).
std::unique_ptr<NoiseSource> make_noise(Noise noise, std::uint64_t seed, int vocabulary);

}  // namespace dgemma::diffusion
