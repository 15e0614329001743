// What a request may set about denoising (contract/generation.md 2, 4, 5, 8, 13). Defaults resolve as
// request > generation_config.json > the values here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace dgemma::diffusion {

enum class Sampler : std::uint8_t { entropy_bound, confidence_threshold };

// Where random ids and draws come from (contract/generation.md 14).
enum class Noise : std::uint8_t { counter, mlx, torch_cpu };

std::string_view name_of(Sampler sampler);  // "entropy-bound", "confidence-threshold"
std::string_view name_of(Noise noise);      // "counter", "mlx", "torch-cpu"
std::optional<Sampler> sampler_named(std::string_view name);
std::optional<Noise> noise_named(std::string_view name);

// The named guards of contract/generation.md 13. All are off in exact mode; the defaults are its column
// "ours". Their names and rules are in guards.h.
struct Guards {
    bool degenerate_gate = true;   // a canvas of nothing but pad and filler never stops the denoising
    bool last_step = true;         // the last step accepts nothing
    bool tool_aware_stop = true;   // a stop id inside an open quoted argument is content
    int empty_reply_rerolls = 3;   // first block only; canvases of C, C/2, C/4, C/4
    bool entropy_stop = false;     // mean entropy < 0.05 nats after >= 12 steps, without stability
    bool plateau_stop = false;     // accept mask unchanged for 8 steps and mean entropy < 0.05
    bool confidence_trim = false;  // cut where p_max < 0.9 and the argmax doubles a neighbour's
    bool hard_trim = false;        // cut where p_max < hard_trim_floor
    float hard_trim_floor = 0.5f;
    bool prefix_exit = false;            // commit a settled first half alone
    bool nonconvergence_reroll = false;  // all steps run and never confident: re-roll once, then end the turn
    bool whitespace_stop = false;        // a block of white space ends the turn

    static Guards none();  // exact mode
};

struct Options {
    Sampler sampler = Sampler::entropy_bound;
    int max_steps = 48;
    float entropy_bound = 0.1f;  // nats
    float threshold = 0.9f;      // of the confidence-threshold sampler
    double t_min = 0.4, t_max = 0.8;
    int stability_threshold = 1;  // earlier argmax canvases that must equal this step's; 0: always stable
    float confidence_threshold = 0.005f;  // nats, mean over the canvas
    // false: neither stability nor entropy ends a block, so entropy-bound always runs max_steps. The
    // confidence-threshold sampler still ends once every position is revealed: then nothing can change.
    bool adaptive_stop = true;
    float temperature = 0;  // of the draw: 0 takes the argmax, 1 draws from the schedule's own distribution
    std::uint64_t seed = 0;
    Noise noise = Noise::counter;
    Guards guards;
};

// Errors: usage, for a number outside its range; the sentence names the option, its value and the range.
Status check(const Options& options);

}  // namespace dgemma::diffusion
