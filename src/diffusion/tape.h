// Recorded noise: canvases in the order they were drawn, and the tokens drawn at each step.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "diffusion/noise.h"

namespace dgemma::diffusion {

// Plays a recording back. Errors of every call: invalid, when the recording has ended or its next canvas has
// another length than the one asked for.
class Tape final : public NoiseSource {
  public:
    using Canvases = std::vector<std::vector<std::int32_t>>;  // each [canvas]

    // canvases: the initial canvas of a block, then one renoise canvas per step, and so on over all blocks.
    // draws: the drawn tokens of each step over all blocks; needed only where tokens are drawn.
    explicit Tape(Canvases canvases, Canvases draws = {})
        : canvases_(std::move(canvases)), draws_(std::move(draws)) {}

    Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) override;
    Status draw(BlockKey key, int step, LogitRows& rows, float temperature,
                std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) override;
    Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) override;

    // Passes over one step's numbers: a row of a batch that has converged goes on consuming its share of them
    // until its whole batch has (contract/generation.md 9).
    void skip_step();

    [[nodiscard]] std::size_t canvases_left() const { return canvases_.size() - next_canvas_; }

  private:
    static Status play(const Canvases& from, std::size_t& next, std::string_view what, BlockKey key,
                       std::span<std::int32_t> ids);

    Canvases canvases_, draws_;
    std::size_t next_canvas_ = 0, next_draw_ = 0;
};

}  // namespace dgemma::diffusion
