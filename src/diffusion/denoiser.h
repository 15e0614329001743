// The denoising of one block: what to feed the network, what to keep of its answer, and when to stop
// (contract/generation.md 3 and 5).
//
//     auto denoiser = Denoiser::start(options, canvas, noise, {block, attempt});
//     do rows = network(denoiser.canvas(), denoiser.temperature());
//     while (!denoiser.advance(rows).done);
//     reply += denoiser.committed();
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/row_stats.h"
#include "diffusion/guards.h"
#include "diffusion/noise.h"
#include "diffusion/options.h"

namespace dgemma::diffusion {

// A canvas position that is fixed to an id: it is what the model sees there in every pass and what is
// committed. It takes no part in acceptance, entropy or stability.
struct Pin {
    int position = 0;  // within the canvas
    std::int32_t id = 0;
};

struct Canvas {
    int length = 0;
    int vocabulary = 0;                        // ids are in [0, vocabulary)
    std::int32_t pad_id = -1, filler_id = -1;  // of the degenerate gate; -1: there is none
    std::vector<Pin> pins;
};

// Why a block ended. The last three are guards.
enum class StopRule : std::uint8_t {
    none,  // it goes on
    stable,
    all_revealed,
    max_steps,
    entropy_stop,
    plateau_stop,
    prefix_exit
};
std::string_view name_of(StopRule rule);  // as written above; "" for none

struct StepOutcome {
    bool done = false;
    StopRule stop_rule = StopRule::none;
    std::vector<std::uint8_t>
        accept;              // [canvas], 1 where the sampler kept the position; pinned ones count as kept
    int accepted = 0;        // how many of them
    float mean_entropy = 0;  // nats, over the positions that are not pinned
    bool stable = false;
    bool confident = false;
    int commit_length =
        0;  // positions to commit when done: the whole canvas, or half of it after prefix_exit
    std::vector<Guard> guards;  // those that fired in this step
};

class Denoiser {
  public:
    // Draws the initial canvas. `noise` must outlive the Denoiser. Errors: usage (an option, pin or canvas
    // that makes no sense), those of the noise source.
    static Result<Denoiser> start(const Options& options, const Canvas& canvas, NoiseSource& noise,
                                  BlockKey key);

    // What the coming pass is fed, [canvas].
    [[nodiscard]] std::span<const std::int32_t> canvas() const { return canvas_; }
    // Passes taken in so far; the index of the coming one.
    [[nodiscard]] int step() const { return step_; }
    [[nodiscard]] float temperature() const;  // of the coming pass
    [[nodiscard]] bool done() const { return done_; }

    // Takes in a pass over canvas() whose rows are logits / temperature(). Errors: non_finite, naming block,
    // step and position, in which case nothing of the pass is kept; those of the noise source; usage when
    // done. After an error the block is lost.
    Result<StepOutcome> advance(LogitRows& rows);

    // The most likely ids of the last pass, [canvas], pinned ids in their places; this is the block when
    // done, and a draft before. Empty before the first pass.
    [[nodiscard]] std::span<const std::int32_t> committed() const { return argmax_; }
    // What the head said in the last pass, [canvas].
    [[nodiscard]] std::span<const RowStats> last_stats() const { return stats_; }
    // One for each pass.
    [[nodiscard]] std::span<const float> mean_entropies() const { return mean_entropies_; }

  private:
    Denoiser(const Options& options, const Canvas& canvas, NoiseSource& noise, BlockKey key);

    [[nodiscard]] bool is_last_step() const { return step_ + 1 == options_.max_steps; }
    [[nodiscard]] Status check_rows(std::span<const RowStats> stats) const;
    void take_in(std::span<const RowStats> stats);
    [[nodiscard]] float mean_over(std::size_t begin, std::size_t end) const;
    Status sample_entropy_bound(LogitRows& rows, StepOutcome& outcome);
    Status sample_confidence(LogitRows& rows, StepOutcome& outcome);
    Status draw(LogitRows& rows, std::span<const std::uint8_t> wanted);
    Status renoise(std::span<const std::uint8_t> keep);
    Status check_ids(std::span<const std::int32_t> ids) const;
    void decide(StepOutcome& outcome);
    [[nodiscard]] StopRule stop_rule(const StepOutcome& outcome) const;

    Options options_;
    Canvas shape_;
    NoiseSource* noise_;
    BlockKey key_;

    int step_ = 0;
    bool done_ = false;
    std::vector<std::uint8_t> pinned_;  // [canvas]
    std::vector<std::int32_t> canvas_;  // what the model sees
    std::vector<std::int32_t> argmax_;  // of the last pass; our own copy, as all that follows
    std::vector<RowStats> stats_;
    std::vector<float> mean_entropies_;
    int equal_passes_ = 0;                     // passes just before the last one that had its argmax
    int equal_head_passes_ = 0;                // the same for the first half
    std::vector<std::uint8_t> accept_;         // of the last pass
    int equal_masks_ = 0;                      // passes up to the last one that had its accept mask
    std::vector<std::int32_t> drawn_, fresh_;  // ids of this step
    std::vector<std::uint8_t> revealed_;       // confidence-threshold sampler
    std::vector<std::int32_t> draft_;          // its revealed ids, and the initial canvas elsewhere
};

}  // namespace dgemma::diffusion
