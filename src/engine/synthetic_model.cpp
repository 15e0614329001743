#include "engine/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "backend/cuda/cuda.h"
#include "base/quote.h"
#include "engine/device.h"
#include "model/synthetic.h"
#include "model/weights.h"

namespace dgemma::engine {

namespace {

class Maker {
  public:
    explicit Maker(backend::Backend& backend) : backend_(backend) {}

    Status make(model::WeightPtr& to, const Shape& shape, float deviation, float mean) {
        DGEMMA_TRY(to,
                   backend::make_random_cuda_weight(backend_, shape, Dtype::bf16, deviation, mean, ++seed_));
        return {};
    }
    Status matrix(model::WeightPtr& to, const Shape& shape) {
        return make(to, shape, 1.0f / std::sqrt(static_cast<float>(shape.back())), 0);
    }
    Status branch(model::WeightPtr& to, const Shape& shape, Encoding encoding) {
        if (encoding == Encoding::plain) return matrix(to, shape);
        DGEMMA_TRY(
            to, backend::make_random_cuda_branch(
                    backend_, shape, encoding, 1.0f / std::sqrt(static_cast<float>(shape.back())), ++seed_));
        return {};
    }
    Status norm(model::WeightPtr& to, std::int64_t n) { return make(to, {n}, 0.1f, 1); }

  private:
    backend::Backend& backend_;
    std::uint64_t seed_ = 0;
};

Status make_layer(const model::TextConfig& t, const model::LayerConfig& layer, const BranchFormats& formats,
                  backend::Backend& backend, Maker& maker, model::LayerWeights& to) {
    const std::int64_t h = t.hidden_size, i = t.intermediate_size, e = t.experts, f = t.expert_size;
    const std::int64_t q = static_cast<std::int64_t>(t.heads) * layer.head_dim;
    const std::int64_t kv = static_cast<std::int64_t>(layer.kv_heads) * layer.head_dim;
    for (model::WeightPtr* norm : {&to.input_norm, &to.dense_pre_norm, &to.dense_post_norm,
                                   &to.experts_pre_norm, &to.experts_post_norm, &to.router_scale})
        DGEMMA_CHECK(maker.norm(*norm, h));
    DGEMMA_CHECK(maker.branch(to.q_proj, {q, h}, formats.attention));
    DGEMMA_CHECK(maker.branch(to.k_proj, {kv, h}, formats.attention));
    if (layer.kind == model::LayerKind::sliding)
        DGEMMA_CHECK(maker.branch(to.v_proj, {kv, h}, formats.attention));
    DGEMMA_CHECK(maker.branch(to.o_proj, {h, q}, formats.attention));
    // As model::synthetic_rows: what attention adds is alike for all rows, and scores are of order one since
    // nothing divides them.
    DGEMMA_CHECK(maker.make(to.post_attention_norm, {h}, 0.03f, 0.3f));
    DGEMMA_CHECK(maker.make(to.post_norm, {h}, 0.1f, 1));
    const float head_norm = std::sqrt(2 / std::sqrt(static_cast<float>(layer.head_dim)));
    DGEMMA_CHECK(maker.make(to.q_norm, {layer.head_dim}, 0, head_norm));
    DGEMMA_CHECK(maker.make(to.k_norm, {layer.head_dim}, 0, head_norm));
    DGEMMA_CHECK(maker.branch(to.gate_proj, {i, h}, formats.dense));
    DGEMMA_CHECK(maker.branch(to.up_proj, {i, h}, formats.dense));
    DGEMMA_CHECK(maker.branch(to.down_proj, {h, i}, formats.dense));
    DGEMMA_CHECK(maker.make(to.router_proj, {e, h}, 1, 0));
    DGEMMA_CHECK(maker.norm(to.per_expert_scale, e));
    DGEMMA_CHECK(maker.branch(to.gate_up, {e, 2 * f, h}, formats.experts));
    DGEMMA_CHECK(maker.branch(to.expert_down, {e, h, f}, formats.experts));
    DGEMMA_CHECK(maker.make(to.decoder_scalar, {1}, 0, 0.8f));
    DGEMMA_CHECK(maker.make(to.encoder_scalar, {1}, 0, 0.8f));
    const std::vector<float> frequencies = model::rotary_frequencies(layer);
    DGEMMA_TRY(to.frequencies, backend.prepare({reinterpret_cast<const std::byte*>(frequencies.data()),
                                                Dtype::f32,
                                                {static_cast<std::int64_t>(frequencies.size())}}));
    return {};
}

Result<model::Weights> make_weights(const model::Config& config, const BranchFormats& formats,
                                    backend::Backend& backend) {
    const model::TextConfig& t = config.text;
    const std::int64_t h = t.hidden_size, i = t.self_conditioning_size;
    Maker maker(backend);
    model::Weights w;
    DGEMMA_CHECK(maker.matrix(w.embedding, {t.vocab_size, h}));
    DGEMMA_CHECK(maker.norm(w.final_norm, h));
    DGEMMA_CHECK(maker.norm(w.sc_pre_norm, h));
    DGEMMA_CHECK(maker.matrix(w.sc_gate, {i, h}));
    DGEMMA_CHECK(maker.matrix(w.sc_up, {i, h}));
    DGEMMA_CHECK(maker.make(w.sc_down, {h, i}, 0.25f / std::sqrt(static_cast<float>(i)), 0));
    w.embedding_scale = round_bf16(std::sqrt(static_cast<float>(h)));
    for (const model::LayerConfig& layer : t.layers)
        DGEMMA_CHECK(make_layer(t, layer, formats, backend, maker, w.layers.emplace_back()));
    return w;
}

}  // namespace

Result<BranchFormats> branch_formats(std::string_view profile, backend::Precision precision) {
    if (profile == "bf16") return BranchFormats{};
    if (profile == "q8") return BranchFormats{Encoding::affine8, Encoding::affine8};
    if (profile == "q4") return BranchFormats{Encoding::affine4, Encoding::affine8};
    if (profile == "fp8") {
        return BranchFormats{Encoding::fp8_row, Encoding::fp8_row,
                             precision == backend::Precision::mixed ? Encoding::fp8_row : Encoding::plain};
    }
    if (profile == "nvfp4") return BranchFormats{Encoding::nvfp4, Encoding::fp8_row};
    return Error{ErrorKind::usage,
                 fmt::format("there is no profile {}: choose from bf16, q8, q4, fp8, nvfp4", quote(profile))};
}

Result<std::unique_ptr<LoadedModel>> synthesize_model(std::string_view preset, int layers,
                                                      std::string_view profile, const LoadOptions& options) {
    DGEMMA_TRY(const BranchFormats formats, branch_formats(profile, options.precision));
    DGEMMA_TRY(const std::string config, model::preset_config(preset, layers));
    DGEMMA_TRY(const Device device, choose_device(options.where.empty() ? "cuda" : options.where));
    if (device.backend != BackendKind::cuda) {
        std::string why = "--device cpu was asked for";
        if (options.where != "cpu") (void)backend::cuda_available(&why);
        return Error{ErrorKind::unsupported,
                     fmt::format("weights are made in the memory of a GPU only, and {}; to measure the CPU, "
                                 "write a model with dgemma synth and name it with --model",
                                 why)};
    }
    auto loaded = std::make_unique<LoadedModel>();
    DGEMMA_TRY(loaded->config, model::parse_config(config, "the preset"));
    loaded->context = options.context > 0 ? options.context : loaded->config.text.max_positions;
    DGEMMA_TRY(loaded->backend,
               backend::make_cuda_backend(options.precision,
                                          {.device = device.index,
                                           .most_bytes = options.vram,
                                           .e4m3_activations = formats.attention == Encoding::fp8_row}));
    DGEMMA_TRY(model::Weights weights, make_weights(loaded->config, formats, *loaded->backend));
    loaded->model.emplace(loaded->config, std::move(weights), *loaded->backend);
    loaded->prefill_chunk = std::max(options.prefill_chunk, gpu_prefill_chunk);
    loaded->kv_type = loaded->backend->precision() == backend::Precision::bf16 ? Dtype::bf16 : Dtype::f32;
    return loaded;
}

}  // namespace dgemma::engine
