// Times denoising passes of the full-size model on the GPU, with weights made in device memory: no file is
// read.
//   bench_cuda_step [--context N] [--batch B] [--steps S] [--layers L] [--format bf16|q8|q4|fp8|nvfp4]
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

// The numbers of contract/model.md 1.2.
model::Config full_size(int layers) {
    model::Config c;
    c.text.vocab_size = 262144;
    c.text.hidden_size = 2816;
    c.text.intermediate_size = c.text.self_conditioning_size = 2112;
    c.text.heads = 16;
    c.text.sliding_window = 1024;
    c.text.experts = 128;
    c.text.top_k = 8;
    c.text.expert_size = 704;
    c.text.max_positions = 262144;
    c.text.rms_eps = 1e-6f;
    c.text.final_softcap = 30;
    for (int l = 0; l < layers; ++l) {
        c.text.layers.push_back(l % 6 == 5
                                    ? model::LayerConfig{model::LayerKind::full, 512, 2, 1e6f, 64}
                                    : model::LayerConfig{model::LayerKind::sliding, 256, 8, 1e4f, 128});
    }
    c.canvas_length = 256;
    return c;
}

// How the experts and the dense MLP are stored.
struct Format {
    Encoding experts = Encoding::plain, dense = Encoding::plain;
};
Format format_named(const std::string& name) {
    if (name == "q8") return {Encoding::affine8, Encoding::affine8};
    if (name == "q4") return {Encoding::affine4, Encoding::affine8};
    if (name == "fp8") return {Encoding::fp8_row, Encoding::fp8_row};
    if (name == "nvfp4") return {Encoding::nvfp4, Encoding::fp8_row};
    return {};
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

class WeightMaker {
  public:
    explicit WeightMaker(backend::Backend& backend) : backend_(backend) {}
    model::WeightPtr branch(const Shape& shape, Encoding encoding) {
        if (encoding == Encoding::plain) return matrix(shape);
        return must(backend::make_random_cuda_branch(
            backend_, shape, encoding, 1.0f / std::sqrt(static_cast<float>(shape.back())), ++seed_));
    }
    model::WeightPtr matrix(const Shape& shape) {
        return make(shape, 1.0f / std::sqrt(static_cast<float>(shape.back())), 0);
    }
    model::WeightPtr norm(std::int64_t n) { return make({n}, 0.1f, 1); }
    model::WeightPtr make(const Shape& shape, float scale, float mean) {
        return must(backend::make_random_cuda_weight(backend_, shape, Dtype::bf16, scale, mean, ++seed_));
    }

  private:
    backend::Backend& backend_;
    std::uint64_t seed_ = 0;
};

model::Weights make_weights(const model::Config& config, backend::Backend& backend, const Format& format) {
    const model::TextConfig& t = config.text;
    const std::int64_t h = t.hidden_size, i = t.intermediate_size, e = t.experts, f = t.expert_size;
    WeightMaker make(backend);
    model::Weights w;
    w.embedding = make.matrix({t.vocab_size, h});
    w.final_norm = make.norm(h);
    w.sc_pre_norm = make.norm(h);
    w.sc_gate = make.matrix({i, h});
    w.sc_up = make.matrix({i, h});
    w.sc_down = make.make({h, i}, 0.25f / std::sqrt(static_cast<float>(i)), 0);
    w.embedding_scale = round_bf16(std::sqrt(static_cast<float>(h)));
    for (const model::LayerConfig& layer : t.layers) {
        model::LayerWeights& to = w.layers.emplace_back();
        const std::int64_t q = static_cast<std::int64_t>(t.heads) * layer.head_dim;
        const std::int64_t kv = static_cast<std::int64_t>(layer.kv_heads) * layer.head_dim;
        for (model::WeightPtr* norm :
             {&to.input_norm, &to.dense_pre_norm, &to.dense_post_norm, &to.experts_pre_norm,
              &to.experts_post_norm, &to.post_norm, &to.router_scale})
            *norm = make.norm(h);
        to.q_proj = make.matrix({q, h});
        to.k_proj = make.matrix({kv, h});
        if (layer.kind == model::LayerKind::sliding) to.v_proj = make.matrix({kv, h});
        to.o_proj = make.matrix({h, q});
        // What attention adds is alike for all rows: much of it, and they would choose few experts.
        to.post_attention_norm = make.make({h}, 0.03f, 0.3f);
        // Scores of order one, since nothing divides them.
        const float head_norm = std::sqrt(2 / std::sqrt(static_cast<float>(layer.head_dim)));
        to.q_norm = make.make({layer.head_dim}, 0, head_norm);
        to.k_norm = make.make({layer.head_dim}, 0, head_norm);
        to.gate_proj = make.branch({i, h}, format.dense);
        to.up_proj = make.branch({i, h}, format.dense);
        to.down_proj = make.branch({h, i}, format.dense);
        to.router_proj = make.make({e, h}, 1, 0);
        to.per_expert_scale = make.norm(e);
        to.gate_up = make.branch({e, 2 * f, h}, format.experts);
        to.expert_down = make.branch({e, h, f}, format.experts);
        to.decoder_scalar = make.make({1}, 0, 0.8f);
        to.encoder_scalar = make.make({1}, 0, 0.8f);
        const std::vector<float> frequencies = model::rotary_frequencies(layer);
        to.frequencies = must(backend.prepare({reinterpret_cast<const std::byte*>(frequencies.data()),
                                               Dtype::f32,
                                               {static_cast<std::int64_t>(frequencies.size())}}));
    }
    return w;
}

// The fewest bytes of weights that a stage reads in one pass with self-conditioning.
double weight_bytes(const model::Config& config, const Format& format, const std::string& stage) {
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
            bytes += 2.0 * h * (2 * q + (l.kind == model::LayerKind::sliding ? 2 : 1) * kv);
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

void run(model::Model& m, const std::string& name, const Format& format, const Scenario& s) {
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
    if (argc > 1) {
        Scenario s;
        bool standard = true;
        for (int i = 1; i + 1 < argc; i += 2) {
            const std::string flag = argv[i];
            if (flag == "--format") {
                format_name = argv[i + 1];
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
    const Format format = format_named(format_name);
    for (const auto& d : must(backend::cuda_devices()))
        fmt::print("device {}: {}, {}.{}, {} multiprocessors, {} of {} MiB free\n", d.index, d.name, d.major,
                   d.minor, d.multiprocessors, d.free_bytes >> 20, d.memory_bytes >> 20);
    auto backend = must(backend::make_cuda_backend(backend::Precision::bf16));
    const model::Config config = full_size(layers);
    model::Model m(config, make_weights(config, *backend, format), *backend);
    for (const Scenario& s : scenarios) run(m, format_name, format, s);
    return 0;
}
