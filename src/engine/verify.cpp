#include "engine/verify.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <fmt/core.h>

#include "diffusion/noise.h"
#include "engine/difference.h"
#include "engine/loaded_model.h"

namespace dgemma::engine {

namespace {

using model::Probe;

const char* name_of(Probe::Stage stage) {
    switch (stage) {
        case Probe::Stage::input:
            return "input";
        case Probe::Stage::attention:
            return "attention";
        case Probe::Stage::dense:
            return "dense";
        case Probe::Stage::experts:
            return "experts";
        case Probe::Stage::router:
            return "router";
        case Probe::Stage::layer:
            return "layer";
        case Probe::Stage::hidden:
            return "hidden";
    }
    return "?";
}

// Keeps everything that a pass showed.
class Recorder : public Probe {
  public:
    void see(Stage stage, int layer, std::span<const float> values) override {
        seen[{static_cast<int>(stage), layer}].assign(values.begin(), values.end());
    }
    std::map<std::pair<int, int>, std::vector<float>> seen;
};

constexpr int kSteps = 2;
constexpr int kRowsForKl = 32;

// What one side computed.
struct Run {
    Recorder prefill, steps[kSteps];
    std::vector<RowStats> stats[kSteps];
    std::vector<std::vector<float>> rows[kSteps];  // zt of every so many rows
    double seconds = 0;
};

Result<std::unique_ptr<Run>> run(LoadedModel& loaded, const VerifyOptions& options) {
    auto out = std::make_unique<Run>();
    const int vocab = loaded.config.text.vocab_size, length = loaded.config.canvas_length;
    const auto noise = diffusion::make_noise(diffusion::Noise::counter, options.seed, vocab);
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(options.prompt_tokens)),
        canvas(static_cast<std::size_t>(length));
    DGEMMA_CHECK(noise->initial_canvas({1000, 0}, prompt));
    DGEMMA_CHECK(noise->initial_canvas({0, 0}, canvas));
    const auto start = std::chrono::steady_clock::now();
    model::KvCache cache = loaded.new_cache();
    DGEMMA_CHECK(loaded.model->encode(cache, prompt, &out->prefill));
    DGEMMA_TRY(const auto logits, loaded.backend->make_logits(length, vocab));
    for (int step = 0; step < kSteps; ++step) {
        model::Canvas one{.cache = &cache,
                          .ids = canvas,
                          .temperature = step == 0 ? 0.8f : 0.79f,
                          .logits = logits.get(),
                          .self_condition = step > 0};
        DGEMMA_CHECK(loaded.model->denoise(std::span(&one, 1), &out->steps[step]));
        out->stats[step].assign(logits->stats().begin(), logits->stats().end());
        for (int r = 0; r < length; r += std::max(1, length / kRowsForKl)) {
            const auto row = logits->row(r);
            out->rows[step].emplace_back(row.begin(), row.end());
        }
    }
    out->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return out;
}

StageDifference compare(const std::vector<float>& got, const std::vector<float>& want) {
    Difference all;
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) all.add(got[i], want[i]);
    StageDifference d;
    d.largest = all.largest(), d.relative_rms = all.relative_rms(), d.cosine = all.cosine();
    d.broken = all.broken();
    return d;
}

// For each stage the layer where it is worst.
void compare_pass(const char* pass, const Recorder& got, const Recorder& want,
                  std::vector<StageDifference>& out) {
    std::map<int, StageDifference> worst;
    for (const auto& [key, values] : want.seen) {
        const auto found = got.seen.find(key);
        if (found == got.seen.end()) continue;
        StageDifference d = compare(found->second, values);
        d.pass = pass, d.stage = name_of(static_cast<Probe::Stage>(key.first)), d.layer = key.second;
        const auto [at, first] = worst.try_emplace(key.first, d);
        if (!first &&
            std::pair(d.broken, d.relative_rms) > std::pair(at->second.broken, at->second.relative_rms))
            at->second = d;
    }
    for (auto& [stage, d] : worst) out.push_back(std::move(d));
}

// KL(p || q) of softmaxed rows, in nats.
double divergence(const std::vector<float>& p, const std::vector<float>& q) {
    const auto log_sum = [](const std::vector<float>& z) {
        const double top = *std::max_element(z.begin(), z.end());
        double sum = 0;
        for (const float x : z) sum += std::exp(x - top);
        return top + std::log(sum);
    };
    const double lp = log_sum(p), lq = log_sum(q);
    double kl = 0;
    for (std::size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
    return kl;
}

HeadDifference compare_heads(const char* pass, const Run& got, const Run& want, int step) {
    HeadDifference d;
    d.pass = pass;
    const auto &a = got.stats[step], &b = want.stats[step];
    for (std::size_t r = 0; r < b.size(); ++r) {
        d.argmax_agreement += a[r].argmax == b[r].argmax ? 1.0 / static_cast<double>(b.size()) : 0;
        d.entropy = std::max(d.entropy, std::abs(static_cast<double>(a[r].entropy) - b[r].entropy));
    }
    for (std::size_t r = 0; r < want.rows[step].size(); ++r) {
        const double kl = divergence(want.rows[step][r], got.rows[step][r]);
        d.mean_kl += kl / static_cast<double>(want.rows[step].size());
        d.largest_kl = std::max(d.largest_kl, kl);
    }
    return d;
}

void keep(const std::string& pass, Recorder&& recorder, std::int64_t rows, AllValues& out) {
    for (auto& [key, values] : recorder.seen) {
        const std::string at = key.second < 0 ? "" : fmt::format("layer_{:02}.", key.second);
        out[fmt::format("{}.{}{}", pass, at, name_of(static_cast<Probe::Stage>(key.first)))] = {
            rows, std::move(values)};
    }
}

AllValues values_of(Run&& run, const VerifyOptions& options) {
    AllValues out;
    keep("prefill", std::move(run.prefill), options.prompt_tokens, out);
    for (int step = 0; step < kSteps; ++step) {
        const std::string pass = fmt::format("step_{}", step + 1);
        const auto& stats = run.stats[step];
        const auto rows = static_cast<std::int64_t>(stats.size());
        StageValues argmax{rows, {}}, entropy{rows, {}};
        for (const RowStats& row : stats) {
            argmax.values.push_back(static_cast<float>(row.argmax));
            entropy.values.push_back(row.entropy);
        }
        keep(pass, std::move(run.steps[step]), rows, out);
        out[pass + ".argmax"] = std::move(argmax);
        out[pass + ".entropy"] = std::move(entropy);
        StageValues logits{static_cast<std::int64_t>(run.rows[step].size()), {}};
        for (const auto& row : run.rows[step])
            logits.values.insert(logits.values.end(), row.begin(), row.end());
        out[pass + ".logits"] = std::move(logits);
    }
    return out;
}

Result<std::unique_ptr<Run>> run_on(const files::Checkpoint& checkpoint, LoadOptions load, int layers,
                                    const VerifyOptions& options, std::string* name, int* all_layers) {
    load.layers = layers;
    DGEMMA_TRY(const std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, load));
    if (name != nullptr) *name = loaded->backend->name();
    if (all_layers != nullptr) *all_layers = loaded->all_layers;
    return run(*loaded, options);
}

}  // namespace

Result<Verification> verify(const files::Checkpoint& checkpoint, const VerifyOptions& options) {
    if (options.layers < 0 || options.prompt_tokens < 1) {
        return Error{ErrorKind::usage, "a comparison takes at least one layer and one prompt token"};
    }
    const auto tell = [&](const std::string& what) {
        if (options.progress) options.progress(what);
    };
    LoadOptions cpu;
    cpu.backend = options.scalar ? BackendKind::reference : BackendKind::plain;
    cpu.precision = backend::Precision::f32;
    cpu.threads = options.device.threads;
    cpu.context = options.device.context;

    Verification out;
    int layers = options.layers;
    std::unique_ptr<Run> want;
    if (layers == 0) {
        // One layer, then two, tell what a layer takes and what the rest does.
        double seconds[2] = {};
        for (int n = 1; n <= 2; ++n) {
            tell(fmt::format("the CPU's speed, {} layer{}", n, n == 1 ? "" : "s"));
            DGEMMA_TRY(want, run_on(checkpoint, cpu, n, options, nullptr, &out.all_layers));
            seconds[n - 1] = want->seconds;
        }
        const double each = std::max(1e-3, seconds[1] - seconds[0]);
        const double more = (options.seconds - seconds[0]) / each;
        layers = std::clamp(1 + static_cast<int>(std::clamp(more, 0.0, 1e6)), 1, out.all_layers);
    }
    tell(fmt::format("{} layers on the CPU", layers));
    DGEMMA_TRY(want, run_on(checkpoint, cpu, layers, options, nullptr, &out.all_layers));
    out.layers = std::min(layers, out.all_layers);
    tell(fmt::format("{} layers on the device", layers));
    DGEMMA_TRY(std::unique_ptr<Run> got,
               run_on(checkpoint, options.device, layers, options, &out.device, nullptr));

    compare_pass("prefill", got->prefill, want->prefill, out.stages);
    const char* const names[kSteps] = {"step 1", "step 2"};
    for (int step = 0; step < kSteps; ++step) {
        compare_pass(names[step], got->steps[step], want->steps[step], out.stages);
        out.heads.push_back(compare_heads(names[step], *got, *want, step));
    }
    if (options.keep_values) {
        out.device_values = values_of(std::move(*got), options);
        out.cpu_values = values_of(std::move(*want), options);
    }
    return out;
}

}  // namespace dgemma::engine
