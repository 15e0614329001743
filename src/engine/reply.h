// The making of one reply, step by step: what the next pass over the model needs of it, and what it makes of
// the pass. Who runs the passes, and what else goes into them, is another's business: a Generator runs one
// reply alone, a Scheduler many together.
//
//     Reply reply(model, logits, session, request, setup, sink);
//     reply.begin(session.begin(request.prompt), ...);
//     while (reply.phase() != Reply::Phase::ended) {
//         if (reply.poll()) break;  // cancelled
//         phase encode:   piece = session.next_piece(...); model.encode(piece); reply.encoded(ms);
//         phase denoise:  canvas = reply.canvas(); model.denoise(canvas); reply.denoised(canvas);
//     }
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
#include "engine/logits_pool.h"
#include "engine/session.h"
#include "model/forward.h"

namespace dgemma::engine {

struct LoadedModel;

// What a request comes to on a model, once it is found to make sense.
struct ReplySetup {
    std::vector<std::int32_t> stop_ids;  // those in force
    int canvas_length = 0;               // of a block that is not shrunk
    Budget budget;
};
// Errors: usage, context_length (with the numbers).
Result<ReplySetup> check_request(const LoadedModel& loaded, const Request& request);
diffusion::Options default_options(const model::GenerationConfig& generation);

class Reply {
  public:
    enum class Phase : std::uint8_t { encode, denoise, ended };

    // Everything but the setup outlives the reply. The session's log is overwritten.
    Reply(model::Model& model, LogitsPool& pool, Session& session, const Request& request, ReplySetup setup,
          Sink& sink);
    ~Reply() { pool_.give_back(std::move(logits_)); }
    Reply(const Reply&) = delete;
    Reply& operator=(const Reply&) = delete;

    // After session.begin(prompt), with what that kept, how that is called, and the name of an approximation
    // that it is (empty: none).
    void begin(const Kept& kept, Reuse reuse, std::string_view approximation = {});

    [[nodiscard]] Phase phase() const { return phase_; }
    // Ends the reply if it is cancelled or late. -> whether it has ended.
    bool poll();
    // Ends the reply, unless it has ended already. Between passes only.
    void stop(FinishReason reason);
    // The session of a reply whose pass failed is put in order; no event tells of it.
    void abandon();

    // In phase encode: a pass of so many milliseconds has taken in a piece of what the session had pending.
    void encoded(double milliseconds);

    // In phase denoise: the coming pass. Valid until `denoised`. Errors: io (memory), those of the noise.
    Result<model::Canvas> canvas();
    // Below this many nats soft embeddings of the pass may leave entries out.
    [[nodiscard]] float soft_cutoff() const { return soft_cutoff_; }
    // The pass has run. Errors: non_finite (names layer and step), those of the noise.
    Status denoised(const model::Canvas& pass);

    [[nodiscard]] std::span<const std::int32_t> delivered() const { return delivered_; }
    [[nodiscard]] const EndEvent& end() const { return *end_; }  // once ended by an event

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

    Status start_attempt();
    // The attempt is denoised: deliver it, or begin the next one.
    void finish_attempt(int commit_length);
    void judge(Block& block, int commit_length) const;
    void find_stop(Block& block) const;
    // Whether the block should be denoised anew, and the guard that says so.
    [[nodiscard]] std::optional<diffusion::Guard> wants_reroll(const Block& block, bool settled) const;
    void deliver(Block block);
    void finish(FinishReason reason, std::optional<std::int32_t> stop_id);
    [[nodiscard]] int remaining() const {
        return setup_.budget.max_tokens - static_cast<int>(delivered_.size());
    }

    model::Model& model_;
    LogitsPool& pool_;
    Session& session_;
    const Request& request_;
    ReplySetup setup_;
    Sink& sink_;
    diffusion::Options options_;  // the request's, without guards in exact mode
    float soft_cutoff_;
    std::unique_ptr<diffusion::NoiseSource> own_noise_;
    diffusion::NoiseSource* noise_;

    Phase phase_ = Phase::encode;
    bool prompt_encoded_ = false;
    std::unique_ptr<backend::Logits> logits_;
    std::vector<std::int32_t> delivered_;

    // The block being denoised, and the attempt at it.
    int number_ = 0, attempt_ = 0;
    std::optional<diffusion::Denoiser> denoiser_;
    std::vector<std::int32_t> input_;  // what the pass is fed
    BlockStats attempt_stats_;
    std::vector<std::string> guards_;  // that fired in any attempt
    int steps_ = 0;                    // of all attempts
    Clock::time_point block_start_, step_start_;

    Clock::time_point start_ = Clock::now();
    Stats stats_;
    std::optional<EndEvent> end_;
};

}  // namespace dgemma::engine
