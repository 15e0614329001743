// What a generation tells while it runs. `ask`, `eval`, `chat` and `serve` are sinks of the same events.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dgemma::engine {

std::string_view name_of(ErrorKind kind);  // "usage", "context_length", ...

enum class FinishReason : std::uint8_t { stop, length, stop_string, cancelled, deadline };
std::string_view name_of(FinishReason reason);  // as written above

// Where the beginning of a prompt came from.
enum class Reuse : std::uint8_t {
    none,     // all of it was encoded
    prefix,   // of a conversation: its cache went on where the prompt goes on
    rewound,  // the same, after the cache was taken back to where prompt and conversation part
    forked,   // the same, from a copy, so that the other conversation stays as it is
    raw_log,  // a tool turn went on from its raw token log, see Continuation
};
std::string_view name_of(Reuse reuse);  // as written above

// Prompt tokens encoded so far.
struct PrefillEvent {
    int done = 0;
    int total = 0;
    int reused = 0;  // tokens whose keys and values were still there
};

// One denoising step of one block, after the sampler has run.
struct StepEvent {
    int block = 0;    // 0-based
    int attempt = 0;  // re-rolls of this block so far
    int step = 0;     // 0-based; step 0 is the hottest
    int max_steps = 0;
    float temperature = 0;
    float mean_entropy = 0;  // nats, over the canvas
    int accepted = 0;        // positions the sampler kept
    bool stable = false;
    bool confident = false;
    double milliseconds = 0;
    // [canvas], valid during the call: what the network was fed, its most likely ids (a draft that the next
    // step replaces), and 1 where the sampler kept the position.
    std::span<const std::int32_t> input;
    std::span<const std::int32_t> argmax;
    std::span<const std::uint8_t> accept;
};

// A block is decided. The ids are final: they are never taken back.
struct BlockEvent {
    int block = 0;
    std::span<const std::int32_t> ids;     // what is delivered: before the stop id, within max_tokens
    std::span<const std::int32_t> canvas;  // the whole committed canvas
    std::optional<std::int32_t> stop_id;   // set when a stop id ends the reply in this block
    int steps = 0;                         // of the attempt that was kept
    int attempts = 1;                      // 1 + re-rolls
    int trimmed = 0;                       // rows denoised but not delivered
    std::string stop_rule;                 // why denoising ended: "stable", "all_revealed", "max_steps", ...
    std::vector<std::string> guards;       // the guards that fired, by name
    double milliseconds = 0;
};

// What a sink says to a block: carry on, or the reply is complete (a stop string was met, a client left).
enum class BlockVerdict : std::uint8_t { go_on, stop_string, cancel };

struct BlockStats {
    int steps = 0, attempts = 0, trimmed = 0;
    std::string stop_rule;
    std::vector<std::string> guards;
};

struct Stats {
    int prompt_tokens = 0;
    int reused_tokens = 0;  // of the prompt, whose keys and values were still there
    Reuse reuse = Reuse::none;
    int output_tokens = 0;  // delivered, the stop id not counted
    int steps = 0;          // denoising passes run, re-rolled ones included
    std::vector<BlockStats> blocks;
    double prefill_ms = 0;
    double denoise_ms = 0;
    double total_ms = 0;
    std::vector<std::string> approximations;  // by name; empty in exact mode

    // Delivered tokens over the whole time, prefill included.
    [[nodiscard]] double tokens_per_second() const {
        return total_ms > 0 ? output_tokens * 1000.0 / total_ms : 0;
    }
};

struct EndEvent {
    FinishReason reason = FinishReason::stop;
    std::optional<std::int32_t> stop_id;
    Stats stats;
};

// Called on the thread that owns the model.
class Sink {
  public:
    virtual ~Sink() = default;
    virtual void on_prefill(const PrefillEvent&) {}
    virtual void on_step(const StepEvent&) {}
    virtual BlockVerdict on_block(const BlockEvent&) { return BlockVerdict::go_on; }
    virtual void on_end(const EndEvent&) {}
};

}  // namespace dgemma::engine
