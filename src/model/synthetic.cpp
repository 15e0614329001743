#include "model/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/counter_rng.h"
#include "base/quote.h"

namespace dgemma::model {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 3> names{"26b", "demo", "tiny"};

struct Preset {
    int vocab, hidden, intermediate, layers, full_every;
    int heads, kv_heads, full_kv_heads, head_dim, full_head_dim;
    int experts, top_k, expert_size;
    int window, canvas, positions;
};
constexpr std::array<Preset, 3> presets{{
    {262144, 2816, 2112, 30, 6, 16, 8, 2, 256, 512, 128, 8, 704, 1024, 256, 262144},
    {2048, 256, 448, 8, 4, 4, 2, 1, 64, 128, 16, 4, 64, 129, 128, 4096},
    {4096, 128, 192, 6, 6, 4, 2, 1, 32, 64, 128, 8, 32, 65, 256, 4096},
}};

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// What the numbers of a tensor are.
struct Recipe {
    enum class Kind : std::uint8_t { constant, noise, embedding } kind = Kind::constant;
    float value = 1;  // the constant, or the standard deviation
};

Recipe recipe_of(const PlannedTensor& tensor, const Config& config, LogitShape logits) {
    const std::string& name = tensor.item.name;
    const Shape& shape = tensor.item.form.shape;
    const auto width = static_cast<float>(shape.back());
    using Kind = Recipe::Kind;
    if (tensor.group == TensorClass::embedding)
        return {Kind::embedding, 1 / std::sqrt(static_cast<float>(config.text.hidden_size))};
    if (shape.size() >= 2) {
        // The router's input has the size 1 / sqrt(hidden); this gives its logits a deviation of 1.
        if (tensor.group == TensorClass::router) return {Kind::noise, 1};
        // What self-conditioning adds must not drown the tokens: on flat rows it is the same for all.
        const bool last = tensor.group == TensorClass::self_conditioning && contains(name, "down_proj");
        return {Kind::noise, (last ? 0.25f : 1.0f) / std::sqrt(width)};
    }
    if (contains(name, "q_norm") || contains(name, "k_norm"))
        return {Kind::constant, std::sqrt(2 / std::sqrt(width))};
    if (contains(name, "post_attention_layernorm")) return {Kind::constant, 0.3f};
    if (contains(name, "post_feedforward_layernorm.weight")) return {Kind::constant, 3};
    if (name == "model.decoder.norm.weight")
        return {Kind::constant, logits == LogitShape::peaked ? 3.0f : 0.02f};
    return {Kind::constant, 1};
}

class SyntheticRows : public files::RowSource {
  public:
    SyntheticRows(Recipe recipe, std::uint64_t seed, std::uint32_t tensor, std::int64_t cols)
        : recipe_(recipe), seed_(seed), tensor_(tensor), cols_(cols) {}

    void read(std::int64_t row, float* out) const override {
        if (recipe_.kind == Recipe::Kind::constant) {
            std::fill_n(out, cols_, recipe_.value);
            return;
        }
        const auto number = static_cast<std::uint64_t>(row);
        const auto keys = philox4x32(
            {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), tensor_, 0},
            {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
        const bool is_long = recipe_.kind == Recipe::Kind::embedding && keys[2] % 10 == 0;
        kernels_.noise(keys[0], keys[1], cols_, recipe_.value * (is_long ? 3.0f : 1.0f), out);
    }

  private:
    Recipe recipe_;
    std::uint64_t seed_;
    std::uint32_t tensor_;
    std::int64_t cols_;
    const files::QuantizeKernels& kernels_ = files::choose_quantize_kernels();
};

// FNV-1a: a tensor keeps its numbers whatever other tensors a model has.
std::uint32_t number_of(std::string_view name) {
    std::uint32_t hash = 0x811C9DC5u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
    return hash;
}

}  // namespace

std::span<const std::string_view> preset_names() { return names; }

Result<std::string> preset_config(std::string_view preset, int layers) {
    const auto* found = std::find(names.begin(), names.end(), preset);
    if (found == names.end()) {
        return Error{ErrorKind::usage, fmt::format("There is no preset {}; the presets are {}.",
                                                   quote(preset), fmt::join(names, ", "))};
    }
    const Preset& p = presets[static_cast<std::size_t>(found - names.begin())];
    if (layers == 0) layers = p.layers;
    json kinds = json::array(), own = json::object();
    for (int l = 0; l < layers; ++l) {
        const bool full = (l + 1) % p.full_every == 0 || l + 1 == layers;
        kinds.push_back(full ? "full_attention" : "sliding_attention");
        if (full) {
            own[std::to_string(l)] = {{"head_dim", p.full_head_dim},
                                      {"num_key_value_heads", p.full_kv_heads}};
        }
    }
    const json config = {
        {"architectures", {"DiffusionGemmaForBlockDiffusion"}},
        {"model_type", "diffusion_gemma"},
        {"dtype", "bfloat16"},
        {"canvas_length", p.canvas},
        {"tie_word_embeddings", true},
        {"vision_config", nullptr},
        {"pad_token_id", 0},
        {"bos_token_id", 2},
        {"eos_token_id", {1, 106, 50}},
        {"text_config",
         {{"model_type", "diffusion_gemma_text"},
          {"vocab_size", p.vocab},
          {"hidden_size", p.hidden},
          {"intermediate_size", p.intermediate},
          {"num_hidden_layers", layers},
          {"num_attention_heads", p.heads},
          {"num_key_value_heads", p.kv_heads},
          {"head_dim", p.head_dim},
          {"per_layer_config", own},
          {"layer_types", kinds},
          {"num_experts", p.experts},
          {"top_k_experts", p.top_k},
          {"moe_intermediate_size", p.expert_size},
          {"sliding_window", p.window},
          {"max_position_embeddings", p.positions},
          {"rms_norm_eps", 1e-6},
          {"final_logit_softcapping", 30.0},
          {"use_bidirectional_attention", "vision"},
          {"rope_parameters",
           {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
            {"full_attention",
             {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}}}}}}},
    };
    return config.dump(2) + "\n";
}

std::string preset_generation_config() {
    const json config = {
        {"max_new_tokens", 256},
        {"max_denoising_steps", 48},
        {"sampler_config", {{"_cls_name", "EntropyBoundSamplerConfig"}, {"entropy_bound", 0.1}}},
        {"t_min", 0.4},
        {"t_max", 0.8},
        {"stability_threshold", 1},
        {"confidence_threshold", 0.005},
        {"eos_token_id", {1, 106, 50}},
        {"pad_token_id", 0},
        {"bos_token_id", 2},
    };
    return config.dump(2) + "\n";
}

std::unique_ptr<files::RowSource> synthetic_rows(const PlannedTensor& tensor, const Config& config,
                                                 LogitShape logits, std::uint64_t seed) {
    return std::make_unique<SyntheticRows>(recipe_of(tensor, config, logits), seed,
                                           number_of(tensor.item.name), tensor.item.form.shape.back());
}

}  // namespace dgemma::model
