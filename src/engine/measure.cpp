#include "engine/measure.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include <sys/resource.h>

#include "diffusion/denoiser.h"
#include "engine/budget.h"
#include "engine/loaded_model.h"
#include "engine/synthetic_model.h"

namespace dgemma::engine {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// One sequence of a measurement.
struct Sequence {
    std::unique_ptr<model::KvCache> cache;
    std::unique_ptr<diffusion::NoiseSource> noise;
    std::optional<diffusion::Denoiser> denoiser;
    std::unique_ptr<backend::Logits> logits;
};

Status check(const MeasureOptions& options) {
    if (options.prompt_tokens < 1 || options.steps < 2 || options.canvas_length < 0 || options.batch < 1) {
        return Error{ErrorKind::usage,
                     "a measurement takes at least one prompt token, one canvas and two steps"};
    }
    return {};
}

Result<Measurement> run(LoadedModel& loaded, double load_seconds, const MeasureOptions& options) {
    const auto tell = [&](const char* what, int done, int total) {
        if (options.progress) options.progress(what, done, total);
    };
    Measurement out;
    out.load_seconds = load_seconds;
    tell("load", 1, 1);
    backend::Backend& backend = *loaded.backend;
    const int vocab = loaded.config.text.vocab_size;
    const int length = options.canvas_length > 0 ? options.canvas_length : loaded.config.canvas_length;
    DGEMMA_CHECK(plan_budget(options.prompt_tokens, length, length, false, loaded.context));
    if (!backend.set_soft_cutoff(options.soft_cutoff)) {
        return Error{ErrorKind::unsupported, "this backend cannot leave entries out of soft embeddings"};
    }
    diffusion::Options denoising;
    denoising.max_steps = std::max(48, options.steps);
    denoising.adaptive_stop = false;
    denoising.guards = diffusion::Guards::none();

    std::vector<Sequence> sequences(static_cast<std::size_t>(options.batch));
    double prefill_seconds = 0;
    for (std::size_t b = 0; b < sequences.size(); ++b) {
        Sequence& s = sequences[b];
        s.cache = std::make_unique<model::KvCache>(loaded.new_cache());
        // Random ids, as far as possible from anything a cache of experts or embedding rows could like.
        denoising.seed = options.seed + b;
        s.noise = diffusion::make_noise(diffusion::Noise::counter, denoising.seed, vocab);
        std::vector<std::int32_t> prompt(static_cast<std::size_t>(options.prompt_tokens));
        DGEMMA_CHECK(s.noise->initial_canvas({1000, 0}, prompt));
        // The last one counts. A backend that records passes has done so by then.
        const int rounds = b == 0 && backend.records_passes() ? 3 : 1;
        for (int round = 0; round < rounds; ++round) {
            s.cache->clear();
            const auto start = Clock::now();
            for (std::size_t done = 0; done < prompt.size();) {
                const std::size_t count =
                    std::min(prompt.size() - done, static_cast<std::size_t>(s.cache->chunk()));
                DGEMMA_CHECK(loaded.model->encode(*s.cache, std::span(prompt).subspan(done, count)));
                done += count;
                tell("prefill", static_cast<int>(done), options.prompt_tokens);
            }
            prefill_seconds = seconds_since(start);
        }
        DGEMMA_TRY(auto denoiser, diffusion::Denoiser::start(
                                      denoising, {.length = length, .vocabulary = vocab}, *s.noise, {0, 0}));
        s.denoiser.emplace(std::move(denoiser));
        DGEMMA_TRY(s.logits, backend.make_logits(length, vocab));
    }
    out.prefill_seconds = prefill_seconds;
    out.prefill_tokens_per_second = options.prompt_tokens / prefill_seconds;

    std::vector<std::array<double, backend::kStages>> stages;
    (void)backend.take_stage_times();
    const auto denoise = [&](bool self_condition) {
        std::vector<model::Canvas> canvases;
        canvases.reserve(sequences.size());
        for (Sequence& s : sequences) {
            canvases.push_back({.cache = s.cache.get(),
                                .ids = s.denoiser->canvas(),
                                .temperature = s.denoiser->temperature(),
                                .logits = s.logits.get(),
                                .self_condition = self_condition});
        }
        return loaded.model->denoise(canvases);
    };
    // The same of denoising: the first round takes memory, the second and the third record.
    for (int round = 0; round < 3 && backend.records_passes(); ++round) {
        DGEMMA_CHECK(denoise(false));
        DGEMMA_CHECK(denoise(true));
    }
    (void)backend.take_stage_times();
    for (int step = 0; step < options.steps; ++step) {
        (void)backend.take_facts();
        const auto start = Clock::now();
        DGEMMA_CHECK(denoise(step > 0));
        const double pass = seconds_since(start);
        for (Sequence& s : sequences) {
            DGEMMA_TRY(const auto outcome, s.denoiser->advance(*s.logits));
            (void)outcome;
        }
        const double whole = seconds_since(start);
        out.step_ms.push_back(1000 * whole);
        auto times = backend.take_stage_times();
        times[static_cast<std::size_t>(backend::Stage::head)] += 1000 * (whole - pass);
        if (step > 0) stages.push_back(times);
        const backend::PassFacts facts = backend.take_facts();
        out.multiply_adds = facts.multiply_adds;
        out.fewest_experts = facts.fewest_experts;
        out.most_expert_rows = facts.most_expert_rows;
        if (facts.soft_rows > 0)
            out.soft_entries_per_row =
                static_cast<double>(facts.soft_entries) / static_cast<double>(facts.soft_rows);
        tell("step", step + 1, options.steps);
    }
    out.median_step_ms = median({out.step_ms.begin() + 1, out.step_ms.end()});
    const auto medians = [](const std::vector<std::array<double, backend::kStages>>& all, std::size_t stage) {
        std::vector<double> of_stage;
        of_stage.reserve(all.size());
        for (const auto& times : all) of_stage.push_back(times[stage]);
        return median(of_stage);
    };
    // A backend that times its stages only when asked does so in passes of their own.
    std::vector<std::array<double, backend::kStages>> timed;
    backend.time_stages(true);
    for (int pass = 0; pass < 3 && backend.records_passes(); ++pass) {
        DGEMMA_CHECK(denoise(true));
        timed.push_back(backend.take_stage_times());
    }
    backend.time_stages(false);
    for (std::size_t s = 0; s < backend::kStages; ++s)
        out.stage_ms[s] = medians(stages, s) + medians(timed, s);
    out.peaks = backend.measure_peaks();
    double at_peak = 0, all = 0;
    for (std::size_t i = 0; i < out.peaks.size(); ++i) {
        all += out.multiply_adds[i];
        if (out.peaks[i] > 0) at_peak += out.multiply_adds[i] / out.peaks[i];
    }
    out.giga_multiply_adds_per_second = all / out.median_step_ms / 1e6;
    out.peak_fraction = at_peak * 1000 / out.median_step_ms;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    out.peak_rss_bytes = std::int64_t{usage.ru_maxrss} * 1024;
    return out;
}

}  // namespace

Result<Measurement> measure(const files::Checkpoint& checkpoint, const LoadOptions& load,
                            const MeasureOptions& options) {
    DGEMMA_CHECK(check(options));
    const auto start = Clock::now();
    DGEMMA_TRY(const std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, load));
    return run(*loaded, seconds_since(start), options);
}

Result<Measurement> measure_synthetic(std::string_view preset, int layers, std::string_view profile,
                                      const LoadOptions& load, const MeasureOptions& options) {
    DGEMMA_CHECK(check(options));
    const auto start = Clock::now();
    DGEMMA_TRY(const std::unique_ptr<LoadedModel> loaded, synthesize_model(preset, layers, profile, load));
    return run(*loaded, seconds_since(start), options);
}

}  // namespace dgemma::engine
