// The making of one reply; the inside of Generator::generate.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "diffusion/denoiser.h"
#include "engine/budget.h"
#include "engine/events.h"
#include "engine/generator.h"
#include "model/forward.h"

namespace dgemma::engine {

class Reply {
  public:
    // Everything outlives the reply. The cache is overwritten. stop_ids: those in force.
    Reply(model::Model& model, model::KvCache& cache, const Request& request,
          std::vector<std::int32_t> stop_ids, const Budget& budget, Sink& sink);

    Result<EndEvent> run();

  private:
    using Clock = std::chrono::steady_clock;

    // A denoised block before it is delivered.
    struct Block {
        std::vector<std::int32_t> ids;     // what is committed: the canvas, or less after a trim
        std::vector<std::int32_t> canvas;  // all of it
        std::optional<std::size_t> stop;   // where in ids the reply ends
        BlockStats stats;
        bool end_of_turn = false;  // a guard ends the turn without a stop id
        double milliseconds = 0;
    };

    Status prefill();
    Result<Block> make_block(int number, int remaining);
    // One attempt at a block; `length` positions.
    Status denoise(Block& block, int number, int attempt, int length);
    void judge(Block& block, const diffusion::Denoiser& denoiser, int commit_length) const;
    void find_stop(Block& block) const;
    // Whether the block should be denoised anew, and the guard that says so.
    std::optional<diffusion::Guard> wants_reroll(const Block& block, int number, int attempt,
                                                 bool settled) const;
    [[nodiscard]] bool cancelled() const { return request_.cancel != nullptr && request_.cancel->load(); }
    [[nodiscard]] EndEvent end(FinishReason reason, std::optional<std::int32_t> stop_id);

    model::Model& model_;
    model::KvCache& cache_;
    const Request& request_;
    std::vector<std::int32_t> stop_ids_;
    Budget budget_;
    Sink& sink_;
    diffusion::Options options_;  // the request's, without guards in exact mode
    std::unique_ptr<diffusion::NoiseSource> own_noise_;
    diffusion::NoiseSource* noise_;

    std::unique_ptr<backend::Logits> logits_;
    std::int64_t logits_rows_ = 0;
    std::vector<std::int32_t> delivered_;
    bool settled_ = true;  // the last attempt came to rest before its last step
    Clock::time_point start_ = Clock::now();
    Stats stats_;
};

}  // namespace dgemma::engine
