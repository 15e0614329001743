// How fast a model runs here: load, prefill, denoising steps by stage, and what of the machine's peak that
// is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "engine/generator.h"

namespace dgemma::engine {

struct MeasureOptions {
    int prompt_tokens = 512;
    int steps = 5;          // at least 2: the first has no self-conditioning and is not counted
    int batch = 1;          // canvases in a pass, each with a context of its own
    int canvas_length = 0;  // 0: the checkpoint's
    std::uint64_t seed = 0;
    float soft_cutoff = std::numeric_limits<float>::infinity();  // as Request's
    // Told after each part: what was done ("load", "prefill", "step") and how many of them are done.
    std::function<void(const char* what, int done, int total)> progress;
};

struct Measurement {
    double load_seconds = 0;
    double prefill_seconds = 0;
    double prefill_tokens_per_second = 0;
    std::vector<double> step_ms;  // every step, sampler included
    double median_step_ms = 0;    // of steps 2..N
    std::array<double, backend::kStages>
        stage_ms{};  // medians over steps 2..N; the sampler counts to the head
    std::array<double, backend::kArithmetics> multiply_adds{};  // of one step
    std::array<double, backend::kArithmetics> peaks{};          // multiply-adds per second, measured here
    double giga_multiply_adds_per_second = 0;                   // over a whole step
    // The time that the step's multiply-adds would take at the peak of the instruction each uses, over the
    // time taken.
    double peak_fraction = 0;
    std::int64_t fewest_experts = 0;
    std::int64_t most_expert_rows = 0;
    double soft_entries_per_row = 0;  // vocabulary entries that a row's soft embedding took in
    std::int64_t peak_rss_bytes = 0;
};

// Prefills random ids and denoises a canvas for each with the early stop off. Errors: those of loading and
// running.
Result<Measurement> measure(const files::Checkpoint& checkpoint, const LoadOptions& load,
                            const MeasureOptions& options);

// The same of random weights in a GPU's memory (synthetic_model.h).
Result<Measurement> measure_synthetic(std::string_view preset, int layers, std::string_view profile,
                                      const LoadOptions& load, const MeasureOptions& options);

}  // namespace dgemma::engine
