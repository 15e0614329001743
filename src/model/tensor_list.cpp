#include "model/tensor_list.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::model {

namespace {

constexpr std::string_view decoder = "model.decoder.";
constexpr std::string_view encoder_text = "model.encoder.language_model.";
constexpr std::string_view tower = "model.encoder.vision_tower.";

void add_layer(std::vector<ExpectedTensor>& out, const TextConfig& text, std::size_t l) {
    const LayerConfig& layer = text.layers[l];
    const std::int64_t h = text.hidden_size, dense = text.intermediate_size, width = text.expert_size,
                       e = text.experts;
    const std::int64_t q = std::int64_t{text.heads} * layer.head_dim,
                       kv = std::int64_t{layer.kv_heads} * layer.head_dim;
    const std::string p = fmt::format("{}layers.{}.", decoder, l);
    using C = TensorClass;
    for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                             "post_feedforward_layernorm_1", "pre_feedforward_layernorm_2",
                             "post_feedforward_layernorm_2", "post_feedforward_layernorm"}) {
        out.push_back({fmt::format("{}{}.weight", p, norm), {h}, C::norms});
    }
    out.push_back({p + "self_attn.q_proj.weight", {q, h}, C::attention});
    out.push_back({p + "self_attn.k_proj.weight", {kv, h}, C::attention});
    if (layer.kind == LayerKind::sliding)
        out.push_back({p + "self_attn.v_proj.weight", {kv, h}, C::attention});
    out.push_back({p + "self_attn.o_proj.weight", {h, q}, C::attention});
    out.push_back({p + "self_attn.q_norm.weight", {layer.head_dim}, C::norms});
    out.push_back({p + "self_attn.k_norm.weight", {layer.head_dim}, C::norms});
    out.push_back({p + "mlp.gate_proj.weight", {dense, h}, C::dense});
    out.push_back({p + "mlp.up_proj.weight", {dense, h}, C::dense});
    out.push_back({p + "mlp.down_proj.weight", {h, dense}, C::dense});
    out.push_back({p + "router.proj.weight", {e, h}, C::router});
    out.push_back({p + "router.scale", {h}, C::router});
    out.push_back({p + "router.per_expert_scale", {e}, C::router});
    out.push_back(
        {p + "experts.gate_up_proj", {e, 2 * width, h}, C::experts, true, p + "experts.gate_up_proj.weight"});
    out.push_back({p + "experts.down_proj", {e, h, width}, C::experts, true, p + "experts.down_proj.weight"});
    out.push_back({p + "layer_scalar", {1}, C::scalars});
    out.push_back({fmt::format("{}layers.{}.layer_scalar", encoder_text, l), {1}, C::scalars, false});
}

void add_vision(std::vector<ExpectedTensor>& out, const VisionConfig& vision, std::int64_t text_hidden) {
    const std::int64_t h = vision.hidden_size, wide = vision.intermediate_size;
    const std::int64_t q = std::int64_t{vision.heads} * vision.head_dim,
                       kv = std::int64_t{vision.kv_heads} * vision.head_dim;
    const auto add = [&](std::string name, Shape shape) {
        out.push_back({std::move(name), std::move(shape), TensorClass::vision, false});
    };
    const std::string t(tower);
    add(t + "patch_embedder.input_proj.weight", {h, std::int64_t{3} * vision.patch_size * vision.patch_size});
    add(t + "patch_embedder.position_embedding_table", {2, vision.position_rows, h});
    if (vision.standardize) {
        add(t + "std_bias", {h});
        add(t + "std_scale", {h});
    }
    for (int l = 0; l < vision.layers; ++l) {
        const std::string p = fmt::format("{}encoder.layers.{}.", tower, l);
        for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                 "post_feedforward_layernorm"}) {
            add(fmt::format("{}{}.weight", p, norm), {h});
        }
        add(p + "self_attn.q_proj.linear.weight", {q, h});
        add(p + "self_attn.k_proj.linear.weight", {kv, h});
        add(p + "self_attn.v_proj.linear.weight", {kv, h});
        add(p + "self_attn.o_proj.linear.weight", {h, q});
        add(p + "self_attn.q_norm.weight", {vision.head_dim});
        add(p + "self_attn.k_norm.weight", {vision.head_dim});
        add(p + "mlp.gate_proj.linear.weight", {wide, h});
        add(p + "mlp.up_proj.linear.weight", {wide, h});
        add(p + "mlp.down_proj.linear.weight", {h, wide});
    }
    add("model.encoder.embed_vision.embedding_projection.weight", {text_hidden, h});
}

// Present but not needed: copies of what the decoder has, and clip buffers.
bool is_redundant(std::string_view name) {
    if (name == "lm_head.weight") return true;
    if (name.starts_with(encoder_text)) return !name.ends_with(".layer_scalar");
    if (!name.starts_with(tower)) return false;
    constexpr std::array<std::string_view, 4> clips{".input_min", ".input_max", ".output_min", ".output_max"};
    return std::any_of(clips.begin(), clips.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_plain_float(Dtype type) { return type == Dtype::f32 || type == Dtype::f16 || type == Dtype::bf16; }

// The three ways in which tensors may fail to fit.
struct Misfits {
    std::vector<std::string> missing, shape, type;

    void check(const ExpectedTensor& expected, std::string_view name, const WeightView& weight) {
        if (weight.shape != expected.shape) {
            shape.push_back(fmt::format("{} is {} instead of {}", name, to_string(weight.shape),
                                        to_string(expected.shape)));
        }
        if (weight.encoding == Encoding::plain && !is_plain_float(weight.type))
            type.push_back(fmt::format("{} is {}", name, name_of(weight.type)));
    }

    [[nodiscard]] bool any() const { return !missing.empty() || !shape.empty() || !type.empty(); }

    [[nodiscard]] Error error(const files::Checkpoint& checkpoint) const {
        std::vector<std::string> parts;
        const auto say = [&](const std::vector<std::string>& names, std::string_view what) {
            if (!names.empty())
                parts.push_back(fmt::format("{} {}: {}", names.size(), what, name_list(names)));
        };
        say(missing, missing.size() == 1 ? "tensor is missing" : "tensors are missing");
        say(shape, shape.size() == 1 ? "has the wrong shape" : "have the wrong shape");
        say(type, type.size() == 1 ? "is neither f32, f16 nor bf16" : "are neither f32, f16 nor bf16");
        return {ErrorKind::invalid,
                fmt::format("The weights in {} do not fit its config.json: {}; download the model again.",
                            quote(checkpoint.path().native()), fmt::join(parts, "; "))};
    }
};

}  // namespace

std::string_view name_of(TensorClass group) {
    switch (group) {
        case TensorClass::embedding:
            return "embedding";
        case TensorClass::attention:
            return "attention";
        case TensorClass::dense:
            return "dense";
        case TensorClass::experts:
            return "experts";
        case TensorClass::router:
            return "router";
        case TensorClass::norms:
            return "norms";
        case TensorClass::self_conditioning:
            return "self-conditioning";
        case TensorClass::scalars:
            return "scalars";
        case TensorClass::vision:
            return "vision";
    }
    return "?";
}

std::string name_list(const std::vector<std::string>& names, std::size_t most) {
    std::string out;
    const std::size_t shown = std::min(names.size(), most);
    for (std::size_t i = 0; i < shown; ++i) {
        if (i != 0) out += i + 1 == shown && shown == names.size() ? " and " : ", ";
        out += printable(names[i]);
    }
    if (shown < names.size()) out += fmt::format(" and {} more", names.size() - shown);
    return out;
}

std::vector<ExpectedTensor> expected_tensors(const Config& config) {
    const TextConfig& text = config.text;
    const std::int64_t h = text.hidden_size, sc = text.self_conditioning_size;
    const std::string d(decoder);
    std::vector<ExpectedTensor> out;
    out.push_back({d + "embed_tokens.weight", {text.vocab_size, h}, TensorClass::embedding});
    out.push_back({d + "norm.weight", {h}, TensorClass::norms});
    out.push_back({d + "self_conditioning.pre_norm.weight", {h}, TensorClass::self_conditioning});
    out.push_back({d + "self_conditioning.gate_proj.weight", {sc, h}, TensorClass::self_conditioning});
    out.push_back({d + "self_conditioning.up_proj.weight", {sc, h}, TensorClass::self_conditioning});
    out.push_back({d + "self_conditioning.down_proj.weight", {h, sc}, TensorClass::self_conditioning});
    for (std::size_t l = 0; l < text.layers.size(); ++l) add_layer(out, text, l);
    if (config.vision) add_vision(out, *config.vision, h);
    return out;
}

TensorReport survey_tensors(const Config& config, const files::Checkpoint& checkpoint) {
    TensorReport report;
    std::set<std::string, std::less<>> known;
    for (const ExpectedTensor& expected : expected_tensors(config)) {
        if (checkpoint.weight(expected.name)) {
            known.insert(expected.name);
            report.has_vision = report.has_vision || expected.group == TensorClass::vision;
        } else if (!expected.other_name.empty()) {
            known.insert(expected.other_name);
        }
    }
    for (const std::string& name : checkpoint.names()) {
        if (known.count(name) != 0) continue;
        (is_redundant(name) ? report.ignored : report.unexpected).push_back(name);
    }
    return report;
}

Result<TensorReport> check_tensors(const Config& config, const files::Checkpoint& checkpoint) {
    DGEMMA_CHECK(files::check_plain_storage(checkpoint));
    // A pack keeps the config.json of the model it was made of.
    if (!config.quantization.empty() && !checkpoint.is_pack()) {
        return Error{
            ErrorKind::unsupported,
            fmt::format(
                "The model in {} is quantised as {}, which dgemma cannot run; it runs plain safetensors in "
                "bf16, f16 or f32.",
                quote(checkpoint.path().native()), quote(config.quantization))};
    }
    TensorReport report = survey_tensors(config, checkpoint);
    Misfits misfits;
    for (const ExpectedTensor& expected : expected_tensors(config)) {
        std::string_view name = expected.name;
        std::optional<WeightView> weight = checkpoint.weight(name);
        if (!weight && !expected.other_name.empty()) {
            name = expected.other_name;
            weight = checkpoint.weight(name);
        }
        if (weight) {
            misfits.check(expected, name, *weight);
        } else if (expected.required || (expected.group == TensorClass::vision && report.has_vision)) {
            misfits.missing.push_back(expected.name);
        }
    }
    if (misfits.any()) return misfits.error(checkpoint);
    return report;
}

}  // namespace dgemma::model
