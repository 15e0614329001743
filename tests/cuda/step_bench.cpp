// Times denoising passes of the full-size model on the GPU, with weights made in device memory: no file is
// read.
//   bench_cuda_step [--context N] [--batch B] [--steps S] [--layers L] [--format bf16|q8|q4|fp8|nvfp4]
//                   [--precision bf16|mixed]    mixed: activations in E4M3 where weights are (fp8)
// one scenario; with nothing but a format or nothing at all, the standard ones. Formats are those of the
// experts and the dense MLP; the rest is bf16. The sampler is not part of the passes. Every stage's time
// stands beside the bytes it must move at least.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "backend/cuda/cuda.h"
#include "engine/synthetic_model.h"
#include "model/forward.h"

namespace {

using namespace dgemma;

constexpr double copy_bandwidth = 4.3e12;  // bytes per second, read and written, on an H200

template <class T>
T must(Result<T> result) {
    if (!result) {
        fmt::print(stderr, "{}\n", result.error().message);
        std::exit(1);
    }
    return std::move(result).value();
}
void must(const Status& status) {
    if (!status) {
        fmt::print(stderr, "{}\n", status.error().message);
        std::exit(1);
    }
}

double bytes_of_weight(Encoding encoding) {
    switch (encoding) {
        case Encoding::plain:
            return 2;
        case Encoding::affine8:
            return 9.0 / 8;
        case Encoding::fp8_row:
            return 1;
        case Encoding::affine4:
        case Encoding::nvfp4:  // scales of 16 bits on the device
            return 5.0 / 8;
    }
    return 0;
}

// The fewest bytes of weights that a stage reads in one pass with self-conditioning.
double weight_bytes(const model::Config& config, const engine::BranchFormats& format,
                    const std::string& stage) {
    const model::TextConfig& t = config.text;
    const double h = t.hidden_size, layers = static_cast<double>(t.layers.size());
    const double embedding = 2.0 * t.vocab_size * h, mlp = 3 * h * t.intermediate_size;
    if (stage == "experts and dense") {
        return layers * (bytes_of_weight(format.experts) * t.experts * 3 * h * t.expert_size +
                         bytes_of_weight(format.dense) * mlp);
    }
    if (stage == "dense") return 2 * mlp;  // of self-conditioning
    if (stage == "head" || stage == "soft embed") return embedding;
    if (stage == "router") return layers * 2.0 * h * t.experts;
    if (stage == "projections") {
        double bytes = 0;
        for (const model::LayerConfig& l : t.layers) {
            const double q = static_cast<double>(t.heads) * l.head_dim,
                         kv = static_cast<double>(l.kv_heads) * l.head_dim;
            bytes += bytes_of_weight(format.attention) * h *
                     (2 * q + (l.kind == model::LayerKind::sliding ? 2 : 1) * kv);
        }
        return bytes;
    }
    return 0;
}

struct Scenario {
    std::int64_t context = 1024;
    int batch = 1;
    int steps = 12;
};

void run(model::Model& m, const std::string& name, const engine::BranchFormats& format, const Scenario& s) {
    backend::Backend& backend = m.backend();
    const model::Config& config = m.config();
    const auto canvas = static_cast<std::size_t>(config.canvas_length);
    std::vector<std::unique_ptr<model::KvCache>> caches;
    std::vector<std::unique_ptr<backend::Logits>> logits;
    std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(s.batch));
    std::uint32_t state = 12345;
    const auto id = [&] { return static_cast<std::int32_t>((state = state * 1664525u + 1013904223u) >> 14); };
    const std::int64_t chunk = std::min<std::int64_t>(s.context, 2048);
    double prefill = 0;
    for (int b = 0; b < s.batch; ++b) {
        auto& cache =
            *caches.emplace_back(std::make_unique<model::KvCache>(config, backend, chunk, Dtype::bf16));
        logits.push_back(must(backend.make_logits(config.canvas_length, config.text.vocab_size)));
        std::vector<std::int32_t> prompt(static_cast<std::size_t>(s.context));
        for (std::int32_t& x : prompt) x = id();
        const auto begin = std::chrono::steady_clock::now();
        must(m.encode(cache, prompt));
        prefill = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        auto& own = ids[static_cast<std::size_t>(b)];
        own.resize(canvas);
        for (std::int32_t& x : own) x = id();
    }
    const auto pass = [&](bool self_condition) {
        std::vector<model::Canvas> canvases;
        for (std::size_t b = 0; b < ids.size(); ++b)
            canvases.push_back({caches[b].get(), ids[b], 0.6f, logits[b].get(), self_condition});
        must(m.denoise(canvases));
        for (const model::Canvas& c : canvases) {
            if (c.broken_layer) fmt::print("a row broke in layer {}\n", *c.broken_layer);
        }
    };
    pass(false);
    pass(true);
    backend.take_facts();
    pass(true);
    std::vector<double> times;
    for (int i = 0; i < s.steps; ++i) {
        auto* f = &pass;
        times.push_back(backend::cuda_milliseconds(
            backend, 1, [](void* p) { (**static_cast<decltype(f)*>(p))(true); }, &f));
    }
    std::sort(times.begin(), times.end());
    backend::begin_cuda_profile(backend);
    pass(true);
    const std::vector<backend::CudaStageTime> stages = backend::end_cuda_profile(backend);

    fmt::print(
        "\n{}, context {}, batch {}: step {:.2f} ms (median of {}; {:.2f} to {:.2f}); last prefill {:.0f} "
        "tokens/s\n",
        name, s.context, s.batch, times[times.size() / 2], s.steps, times.front(), times.back(),
        static_cast<double>(s.context) / prefill);
    double sum = 0;
    for (const auto& stage : stages) {
        sum += stage.milliseconds;
        const double bytes = weight_bytes(config, format, stage.stage);
        fmt::print("  {:<18} {:8.3f} ms {:5} calls", stage.stage, stage.milliseconds, stage.calls);
        if (bytes > 0) {
            fmt::print("  {:6.2f} GB of weights, {:4.0f} % of {:.1f} TB/s", bytes / 1e9,
                       100 * bytes / copy_bandwidth / (stage.milliseconds / 1e3), copy_bandwidth / 1e12);
        }
        fmt::print("\n");
    }
    double all = 0;
    for (const char* stage : {"experts and dense", "dense", "head", "soft embed", "router", "projections"})
        all += weight_bytes(config, format, stage);
    fmt::print("  {:<18} {:8.3f} ms              {:6.2f} GB of weights, floor {:.2f} ms\n", "stages", sum,
               all / 1e9, 1e3 * all / copy_bandwidth);
    const backend::PassFacts facts = backend.take_facts();
    fmt::print("  experts with rows: {} at least; rows of one expert: {} at most\n", facts.fewest_experts,
               facts.most_expert_rows);
    const RowStats& first = logits[0]->stats()[0];
    fmt::print("  first row: argmax {}, max {:.3f}, entropy {:.3f}\n", first.argmax, first.max,
               first.entropy);
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Scenario> scenarios;
    int layers = 30;
    std::string format_name = "bf16";
    engine::LoadOptions load;
    load.precision = backend::Precision::bf16;
    load.where = "cuda";
    if (argc > 1) {
        Scenario s;
        bool standard = true;
        for (int i = 1; i + 1 < argc; i += 2) {
            const std::string flag = argv[i];
            if (flag == "--format") {
                format_name = argv[i + 1];
            } else if (flag == "--precision") {
                load.precision = std::string(argv[i + 1]) == "mixed" ? backend::Precision::mixed
                                                                     : backend::Precision::bf16;
            } else {
                standard = false;
            }
            if (flag == "--context") s.context = std::atoll(argv[i + 1]);
            if (flag == "--batch") s.batch = std::atoi(argv[i + 1]);
            if (flag == "--layers") layers = std::atoi(argv[i + 1]);
            if (flag == "--steps") s.steps = std::atoi(argv[i + 1]);
        }
        if (!standard) scenarios.push_back(s);
    }
    if (scenarios.empty()) scenarios = {{1024, 1, 20}, {32768, 1, 6}, {1024, 16, 4}};
    for (const auto& d : must(backend::cuda_devices()))
        fmt::print("device {}: {}, {}.{}, {} multiprocessors, {} of {} MiB free\n", d.index, d.name, d.major,
                   d.minor, d.multiprocessors, d.free_bytes >> 20, d.memory_bytes >> 20);
    const auto loaded = must(engine::synthesize_model("26b", layers, format_name, load));
    const engine::BranchFormats format = must(engine::branch_formats(format_name, load.precision));
    for (const Scenario& s : scenarios) run(*loaded->model, format_name, format, s);
    return 0;
}
