#include "model/weights.h"

#include <cmath>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "model/tensor_list.h"

namespace dgemma::model {

std::vector<float> rotary_frequencies(const LayerConfig& layer) {
    std::vector<float> out(static_cast<std::size_t>(layer.head_dim / 2));
    for (int i = 0; i < layer.rotated_pairs; ++i) {
        // The exponent counts over the whole head, also where only part of it rotates.
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(layer.head_dim);
        out[static_cast<std::size_t>(i)] = 1.0f / std::pow(layer.rope_theta, exponent);
    }
    return out;
}

namespace {

// Takes tensors by name out of the checkpoint and hands them to the backend.
class Loader {
  public:
    Loader(const files::Checkpoint& checkpoint, backend::Backend& backend)
        : checkpoint_(checkpoint), backend_(backend) {}

    Status take(WeightPtr& to, const std::string& name, std::string_view alternative = {}) {
        DGEMMA_TRY(const WeightView weight, find(name, alternative));
        DGEMMA_TRY(to, backend_.prepare_encoded(weight));
        return {};
    }
    // Of attention's projections.
    Status take_projection(WeightPtr& to, const std::string& name) {
        DGEMMA_TRY(const WeightView weight, find(name, {}));
        DGEMMA_TRY(to, backend_.prepare_projection(weight));
        return {};
    }
    // Of the dense MLP or the experts.
    Status take_branch(WeightPtr& to, const std::string& name, std::string_view alternative = {}) {
        DGEMMA_TRY(const WeightView weight, find(name, alternative));
        DGEMMA_TRY(to, backend_.prepare_branch(weight));
        return {};
    }

  private:
    Result<WeightView> find(const std::string& name, std::string_view alternative) {
        std::optional<WeightView> weight = checkpoint_.weight(name);
        if (!weight && !alternative.empty()) weight = checkpoint_.weight(alternative);
        if (!weight) {
            return Error{ErrorKind::invalid,
                         fmt::format("tensor {} is missing from {}", name, checkpoint_.path().string())};
        }
        return *weight;
    }

    const files::Checkpoint& checkpoint_;
    backend::Backend& backend_;
};

}  // namespace

bool experts_in_e4m3(const files::Checkpoint& checkpoint) {
    for (const char* name : {"model.decoder.layers.0.experts.gate_up_proj",
                             "model.decoder.layers.0.experts.gate_up_proj.weight"}) {
        const std::optional<WeightView> weight = checkpoint.weight(name);
        if (weight) return weight->encoding == Encoding::fp8_row;
    }
    return false;
}

Result<Weights> load_weights(const files::Checkpoint& checkpoint, const Config& config,
                             backend::Backend& backend, const WeightOptions& options) {
    DGEMMA_CHECK(check_tensors(config, checkpoint));
    Loader load(checkpoint, backend);
    Weights w;
    const std::string decoder = "model.decoder.";
    DGEMMA_CHECK(load.take(w.embedding, decoder + "embed_tokens.weight"));
    DGEMMA_CHECK(load.take(w.final_norm, decoder + "norm.weight"));
    DGEMMA_CHECK(load.take(w.sc_pre_norm, decoder + "self_conditioning.pre_norm.weight"));
    DGEMMA_CHECK(load.take(w.sc_gate, decoder + "self_conditioning.gate_proj.weight"));
    DGEMMA_CHECK(load.take(w.sc_up, decoder + "self_conditioning.up_proj.weight"));
    DGEMMA_CHECK(load.take(w.sc_down, decoder + "self_conditioning.down_proj.weight"));
    w.embedding_scale = std::sqrt(static_cast<float>(config.text.hidden_size));
    if (checkpoint.weight(decoder + "embed_tokens.weight")->type == Dtype::bf16)
        w.embedding_scale = round_bf16(w.embedding_scale);

    for (std::size_t l = 0; l < config.text.layers.size(); ++l) {
        const LayerConfig& layer = config.text.layers[l];
        const std::string p = fmt::format("{}layers.{}.", decoder, l);
        LayerWeights& to = w.layers.emplace_back();
        DGEMMA_CHECK(load.take(to.input_norm, p + "input_layernorm.weight"));
        DGEMMA_CHECK(load.take_projection(to.q_proj, p + "self_attn.q_proj.weight"));
        DGEMMA_CHECK(load.take_projection(to.k_proj, p + "self_attn.k_proj.weight"));
        if (layer.kind == LayerKind::sliding)
            DGEMMA_CHECK(load.take_projection(to.v_proj, p + "self_attn.v_proj.weight"));
        DGEMMA_CHECK(load.take_projection(to.o_proj, p + "self_attn.o_proj.weight"));
        DGEMMA_CHECK(load.take(to.q_norm, p + "self_attn.q_norm.weight"));
        DGEMMA_CHECK(load.take(to.k_norm, p + "self_attn.k_norm.weight"));
        DGEMMA_CHECK(load.take(to.post_attention_norm, p + "post_attention_layernorm.weight"));
        DGEMMA_CHECK(load.take(to.dense_pre_norm, p + "pre_feedforward_layernorm.weight"));
        DGEMMA_CHECK(load.take(to.dense_post_norm, p + "post_feedforward_layernorm_1.weight"));
        DGEMMA_CHECK(load.take(to.experts_pre_norm, p + "pre_feedforward_layernorm_2.weight"));
        DGEMMA_CHECK(load.take(to.experts_post_norm, p + "post_feedforward_layernorm_2.weight"));
        DGEMMA_CHECK(load.take(to.post_norm, p + "post_feedforward_layernorm.weight"));
        DGEMMA_CHECK(load.take_branch(to.gate_proj, p + "mlp.gate_proj.weight"));
        DGEMMA_CHECK(load.take_branch(to.up_proj, p + "mlp.up_proj.weight"));
        DGEMMA_CHECK(load.take_branch(to.down_proj, p + "mlp.down_proj.weight"));
        DGEMMA_CHECK(load.take(to.router_scale, p + "router.scale"));
        DGEMMA_CHECK(load.take(to.router_proj, p + "router.proj.weight"));
        DGEMMA_CHECK(load.take(to.per_expert_scale, p + "router.per_expert_scale"));
        DGEMMA_CHECK(
            load.take_branch(to.gate_up, p + "experts.gate_up_proj", p + "experts.gate_up_proj.weight"));
        DGEMMA_CHECK(
            load.take_branch(to.expert_down, p + "experts.down_proj", p + "experts.down_proj.weight"));
        DGEMMA_CHECK(load.take(to.decoder_scalar, p + "layer_scalar"));
        DGEMMA_CHECK(load.take(to.encoder_scalar,
                               fmt::format("model.encoder.language_model.layers.{}.layer_scalar", l),
                               p + "layer_scalar"));
        std::vector<float> frequencies = rotary_frequencies(layer);
        if (options.round_frequencies) {
            for (float& f : frequencies) f = round_bf16(f);
        }
        DGEMMA_TRY(to.frequencies, backend.prepare({reinterpret_cast<const std::byte*>(frequencies.data()),
                                                    Dtype::f32,
                                                    {static_cast<std::int64_t>(frequencies.size())}}));
    }
    return w;
}

}  // namespace dgemma::model
