// A model loaded from a golden's checkpoint on a given backend, and a probe that keeps what it sees.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "files/checkpoint.h"
#include "model/config.h"
#include "model/forward.h"

namespace dgemma::testing {

template <class T>
T must(Result<T> result) {
    if (!result) throw std::runtime_error(result.error().message);
    return std::move(result).value();
}
inline void must(const Status& status) {
    if (!status) throw std::runtime_error(status.error().message);
}

// cuda_generic: without the kernels of one architecture.
enum class Which { reference, plain, cuda, cuda_generic };

// Whom the goldens judge: the CPU's backends, and in test_cuda, which compiles the same tests, the GPU's.
#if defined(DGEMMA_TEST_CUDA)
inline constexpr Which judged[] = {Which::cuda, Which::cuda_generic};
#else
inline constexpr Which judged[] = {Which::plain, Which::reference};
#endif
inline constexpr Which fastest = judged[0];

inline std::string name_of(Which which) {
    switch (which) {
        case Which::reference:
            return "reference";
        case Which::plain:
            return "plain";
        case Which::cuda:
            return "cuda";
        case Which::cuda_generic:
            return "cuda_generic";
    }
    return {};
}

inline std::unique_ptr<backend::Backend> make_backend(Which which, backend::Precision precision,
                                                      int threads = 2) {
    switch (which) {
        case Which::reference:
            return backend::make_reference_backend(precision);
        case Which::plain:
            return backend::make_plain_backend(precision, threads);
        default:
            return must(backend::make_cuda_backend(precision, {.hopper_kernels = which == Which::cuda}));
    }
}

struct LoadedModel {
    LoadedModel(const std::filesystem::path& dir, std::unique_ptr<backend::Backend> on,
                model::WeightOptions options = {})
        : checkpoint(must(files::Checkpoint::open(dir))),
          config(must(model::parse_config(must(checkpoint.config_text()), "config.json"))),
          backend(std::move(on)),
          model(config, must(model::load_weights(checkpoint, config, *backend, options)), *backend) {}

    model::KvCache cache(std::int64_t chunk = 64, Dtype type = Dtype::f32) {
        return {config, *backend, chunk, type};
    }
    std::unique_ptr<backend::Logits> logits(std::int64_t rows = 0) {
        return must(backend->make_logits(rows == 0 ? config.canvas_length : rows, config.text.vocab_size));
    }
    // One pass over a canvas; the logits z (before the temperature), [canvas * vocab].
    std::vector<float> denoise(const model::KvCache& cache, std::span<const std::int32_t> ids,
                               backend::Logits& logits, bool self_condition, float temperature = 1,
                               model::Probe* probe = nullptr) {
        model::Canvas canvas{&cache, ids, temperature, &logits, self_condition};
        must(model.denoise(std::span(&canvas, 1), probe));
        std::vector<float> z;
        for (int r = 0; r < static_cast<int>(ids.size()); ++r) {
            for (const float v : logits.row(r)) z.push_back(v * temperature);
        }
        return z;
    }

    files::Checkpoint checkpoint;
    model::Config config;
    std::unique_ptr<backend::Backend> backend;
    model::Model model;
};

// Keeps everything by the names the goldens use: "layer3", "layer0.attn", "layer0.router",
// "self_conditioning".
class Keep final : public model::Probe {
  public:
    void see(Stage stage, int layer, std::span<const float> values) override {
        const std::string at = "layer" + std::to_string(layer);
        const auto name = [&]() -> std::string {
            switch (stage) {
                case Stage::input:
                    return "self_conditioning";
                case Stage::attention:
                    return at + ".attn";
                case Stage::dense:
                    return at + ".mlp";
                case Stage::experts:
                    return at + ".experts";
                case Stage::router:
                    return at + ".router";
                case Stage::layer:
                    return at;
                case Stage::hidden:
                    return "last_hidden";
            }
            return {};
        }();
        std::vector<float>& kept = seen[name];
        kept.insert(kept.end(), values.begin(), values.end());
    }
    std::map<std::string, std::vector<float>> seen;
};

// Keys or values of a layer by position, [kv_heads, kept, D]: the last `window - 1` tokens of a sliding
// layer.
inline std::vector<float> cached(LoadedModel& m, const model::KvCache& cache, std::size_t l, bool keys) {
    const model::LayerConfig& layer = m.config.text.layers[l];
    const backend::KvPages pages = cache.layer(l);
    const std::int64_t begin =
        layer.kind == model::LayerKind::sliding
            ? std::max<std::int64_t>(0, cache.length() - m.config.text.sliding_window + 1)
            : 0;
    const std::int64_t in_page = layer.kv_heads * backend::page_tokens * layer.head_dim;
    std::vector<std::vector<std::byte>> held;
    for (const void* page : keys ? pages.keys : pages.values) {
        held.emplace_back(static_cast<std::size_t>(in_page) * size_of(pages.type));
        m.backend->read_memory(page, held.back());
    }
    std::vector<float> out;
    for (int h = 0; h < layer.kv_heads; ++h) {
        for (std::int64_t p = begin; p < cache.length(); ++p) {
            const std::int64_t slot = p % pages.capacity;
            const Tensor page{
                held[static_cast<std::size_t>(slot / backend::page_tokens)].data(), pages.type, {in_page}};
            const std::int64_t at = (h * backend::page_tokens + slot % backend::page_tokens) * layer.head_dim;
            for (int d = 0; d < layer.head_dim; ++d) out.push_back(element_as_f32(page, at + d));
        }
    }
    return out;
}

}  // namespace dgemma::testing
