// One reply from one prompt: prefill, then denoise, commit and encode block after block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "diffusion/denoiser.h"
#include "diffusion/options.h"
#include "engine/events.h"
#include "model/config.h"

namespace dgemma::files {
class Checkpoint;
}

namespace dgemma::engine {

enum class BackendKind : std::uint8_t { plain, reference, cuda };

// A prompt is encoded there by so many tokens at a time: enough rows for each expert that the matrix units
// bound it and not the reading of weights.
inline constexpr int gpu_prefill_chunk = 4096;

struct LoadOptions {
    BackendKind backend = BackendKind::plain;
    // f32 rounds nothing; bf16 follows the rounding points of contract/model.md 3.
    backend::Precision precision = backend::Precision::f32;
    // Of keys and values: f32, bf16 or f16. Unset: f32 where the precision is f32 or the checkpoint's weights
    // are, else bf16.
    std::optional<Dtype> kv;
    std::string cpu_isa;      // of BackendKind::plain, one of cpu_isas(); empty: the best
    int threads = 0;          // 0: physical cores
    bool pin = false;         // each thread stays on a core of its own
    std::string where;        // of BackendKind::plain: as choose_device takes it; empty: cpu
    int device = 0;           // of BackendKind::cuda
    std::uint64_t vram = 0;   // of a GPU: most bytes of its memory to use; 0: all that are free
    int context = 0;          // longest context; 0: the checkpoint's max_position_embeddings
    int prefill_chunk = 512;  // tokens of one encoder call; at least gpu_prefill_chunk on a GPU
    int layers = 0;           // the first so many layers alone, then the last norm and the head; 0: all
};

// The instruction sets that the plain backend has kernels for and this machine runs, weakest first.
std::vector<std::string_view> cpu_isas();

// Of sparse self-conditioning, in nats (contract/model.md 8).
inline constexpr float kSparseCutoff = 10;

// The next round of a tool turn, as its messages show it: our own calls echoed back, and their results. The
// client's rendering may leave out what the model thought between them; the model goes on better, and from a
// warm cache, where it left off: with the raw token log of the round before and `suffix` behind it. The raw
// log is the prompt in force in that round, the ids delivered, and the stop id if one ended the reply (such
// as <|tool_response>). Used by the Scheduler only, only if it still holds that round's conversation, and
// never in exact mode; otherwise Request::prompt, the rendered form, is what is answered. Stats::reuse says
// raw_log where it was used, and where raw log and rendering differ Stats::approximations names
// "raw_tool_turn".
struct Continuation {
    std::uint64_t round = 0;           // RequestId of the round before; 0: none
    std::vector<std::int32_t> suffix;  // what follows its raw log: results, and whatever opens the reply
};

struct Request {
    std::vector<std::int32_t> prompt;    // at least one id
    int max_tokens = 0;                  // 0: 4,096 or what the context leaves
    int canvas_length = 0;               // 0: the checkpoint's
    bool shrink_canvas = false;          // min(C, max(remaining, 64)), contract/generation.md 8
    std::vector<std::int32_t> stop_ids;  // empty: the checkpoint's
    std::vector<diffusion::Pin> pins;    // of the first block
    diffusion::Options diffusion;        // start from Generator::default_options()
    bool exact = false;                  // no guard, no approximation
    // Soft embeddings leave out what is less likely than e^-soft_cutoff of a row's best (contract/model.md 8:
    // 10); an approximation that the stats name. Infinity: none is left out.
    float soft_cutoff = std::numeric_limits<float>::infinity();
    // What only the text room can tell about ids; a guard whose question is not answered never fires.
    // Does a reply of these ids (before the stop id) show a reader nothing? Unset: only a reply of no ids
    // does.
    std::function<bool(std::span<const std::int32_t> reply)> shows_nothing;
    // Do these ids, the reply so far, leave a quoted tool argument open?
    std::function<bool(std::span<const std::int32_t> reply)> inside_quote;
    std::function<bool(std::int32_t id)> is_space;
    // Takes the place of the source that diffusion.noise names: recorded noise.
    diffusion::NoiseSource* noise = nullptr;
    const std::atomic<bool>* cancel = nullptr;  // polled between passes
    // The reply ends with FinishReason::deadline before the first pass that would begin later.
    std::optional<std::chrono::steady_clock::time_point> deadline;
    // 0, 1, 2 ...: the same seed draws other noise in each attempt at the whole reply (for a reply that did
    // not pass a check). Only with Noise::counter.
    int attempt = 0;

    // --- of the Scheduler; Generator::generate does not look at them
    Continuation continuation;
    // What the next rendering of this conversation will begin with: the prompt, and the reply as history has
    // it (the thought left out, the turn closed). Asked once, when the reply has ended with stop, length or
    // stop_string; what it says is encoded when nothing else is to be done, so that the next turn finds it in
    // the cache. It changes how soon the next turn answers and never what. Unset or an empty answer: the
    // conversation stays as the reply left it (right for a reply that calls tools).
    std::function<std::vector<std::int32_t>(std::span<const std::int32_t> reply, const EndEvent& end)>
        next_prompt;
};

class Generator {
  public:
    // Errors: those of the files (not_found, invalid, unsupported), usage.
    // The checkpoint must outlive the generator: weights are read where its files are mapped.
    static Result<std::unique_ptr<Generator>> load(const files::Checkpoint& checkpoint,
                                                   const LoadOptions& options);
    ~Generator();
    Generator(const Generator&) = delete;
    Generator& operator=(const Generator&) = delete;

    [[nodiscard]] const model::Config& config() const;
    [[nodiscard]] const model::GenerationConfig& generation_config() const;
    [[nodiscard]] diffusion::Options default_options() const;  // from generation_config.json
    [[nodiscard]] int context_limit() const;

    // Errors: usage (empty prompt, an id outside the vocabulary, a nonsense option), context_length (with the
    // numbers, before any work), non_finite (names layer and step; what was delivered before stays
    // delivered). A cancelled request is no error: it ends with FinishReason::cancelled. Events go to `sink`
    // on this thread.
    Result<EndEvent> generate(const Request& request, Sink& sink);

  private:
    struct State;
    explicit Generator(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace dgemma::engine
