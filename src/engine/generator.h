// One reply from one prompt: prefill, then denoise, commit and encode block after block.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "diffusion/options.h"
#include "engine/events.h"
#include "model/config.h"

namespace dgemma::files {
class Checkpoint;
}

namespace dgemma::engine {

// How the network computes. `exact` rounds nothing that the f32 reference does not round; `bf16` follows the
// rounding points of contract/model.md 3.
enum class Precision : std::uint8_t { f32, bf16 };
enum class Backend : std::uint8_t { plain, reference };

struct LoadOptions {
    Backend backend = Backend::plain;
    Precision precision = Precision::f32;
    int threads = 0;  // 0: physical cores
    int context = 0;  // longest context; 0: the checkpoint's max_position_embeddings
    int prefill_chunk = 512;
};

// A canvas position that is fixed to an id: it is what the model sees there and it is never renoised.
struct Pin {
    int position = 0;  // within the canvas
    std::int32_t id = 0;
};

struct Request {
    std::vector<std::int32_t> prompt;    // at least one id
    int max_tokens = 0;                  // 0: 4,096 or what the context leaves
    int canvas_length = 0;               // 0: the checkpoint's
    bool shrink_canvas = false;          // min(C, max(remaining, 64)), contract/generation.md 8
    std::vector<std::int32_t> stop_ids;  // empty: the checkpoint's
    std::vector<Pin> pins;               // of the first block
    diffusion::Options diffusion;        // start from Generator::default_options()
    bool exact = false;                  // no guard, no approximation
    // Says whether a reply that consists of these ids (before the stop id) shows nothing to a reader; drives
    // the empty-reply re-roll. Unset: only a reply of no ids counts as empty.
    std::function<bool(std::span<const std::int32_t>)> shows_nothing;
    const std::atomic<bool>* cancel = nullptr;  // polled between passes
};

class Generator {
  public:
    // Errors: those of the files (not_found, invalid, unsupported), usage.
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
    // numbers, before any work), cancelled, non_finite (names layer and step). Events go to `sink` on this
    // thread.
    Result<EndEvent> generate(const Request& request, Sink& sink);

  private:
    struct Impl;
    explicit Generator(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace dgemma::engine
