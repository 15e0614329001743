#include "model/config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "files/checkpoint.h"
#include "model/json_fields.h"
#include "model/vision_config.h"

namespace dgemma::model {

using nlohmann::json;

namespace {

// Bounds far above any sensible model, so that products of two or three sizes stay inside 63 bits.
constexpr int most_layers = 1024, most_heads = 1024, most_head_dim = 4096, most_width = 1 << 20,
              most_hidden = 1 << 17;
constexpr int most_vocabulary = 1 << 24, most_experts = 1 << 16, most_positions = 1 << 30, most_canvas = 4096;

constexpr std::string_view what_we_run =
    "DiffusionGemma (DiffusionGemmaForBlockDiffusion, model_type \"diffusion_gemma\")";

Error unknown_architecture(std::string_view where, std::string_view key, const json* value) {
    std::string name = JsonFields::words_for(value);
    std::string hint;
    if (name.rfind("\"gemma", 0) == 0 || name.rfind("\"Gemma", 0) == 0) {
        hint =
            " A plain Gemma has the same tensors but writes left to right: it was never trained to denoise.";
    }
    return {ErrorKind::unsupported,
            fmt::format("In {}, {} is {}, an architecture that dgemma cannot run; it runs {}.{}",
                        quote(where), key, name, what_we_run, hint)};
}

// The architecture is told by name, never by shapes: a plain Gemma 4 26B has the same
// (contract/checkpoints.md 6).
Status read_architecture(const JsonFields& top, std::string_view where, Config& config) {
    const json* type = top.find("model_type");
    if (type != nullptr && *type != "diffusion_gemma" && *type != "diffusion_gemma4") {
        return unknown_architecture(where, "model_type", type);
    }
    const json* classes = top.find("architectures");
    if (classes != nullptr && !classes->is_array())
        return top.wrong("architectures", "a list of class names");
    const json* name = classes == nullptr || classes->empty() ? nullptr : &classes->front();
    if (name != nullptr) {
        constexpr std::array<std::string_view, 3> known{"DiffusionGemmaForBlockDiffusion",
                                                        "DiffusionGemma4ForBlockDiffusion",
                                                        "DiffusionGemma4ModelForBlockDiffusion"};
        bool found = false;
        for (const std::string_view one : known)
            found = found || (name->is_string() && name->get_ref<const std::string&>() == one);
        if (!found) return unknown_architecture(where, "architectures[0]", name);
        config.architecture = name->get<std::string>();
    } else if (type == nullptr) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("The file {} names neither a model_type nor an architecture; dgemma runs {}.",
                        quote(where), what_we_run)};
    }
    config.model_type = type != nullptr                                           ? type->get<std::string>()
                        : config.architecture.find("Gemma4") != std::string::npos ? "diffusion_gemma4"
                                                                                  : "diffusion_gemma";
    return {};
}

// theta and the number of rotated pairs of one kind of layer, before the head size is known.
struct Rope {
    double theta = 0;
    double rotated = 1;  // of the pairs
};

// rope_parameters.<kind>, or the older flat keys: rope_theta and partial_rotary_factor for full layers,
// rope_local_base_freq for sliding ones.
Result<Rope> read_rope(const JsonFields& text, LayerKind kind) {
    const bool full = kind == LayerKind::full;
    constexpr double most_theta = 1e12;
    Rope out;
    DGEMMA_TRY(out.theta, text.number(full ? "rope_theta" : "rope_local_base_freq", full ? 1e6 : 1e4,
                                      most_theta, false));
    if (full) {
        DGEMMA_TRY(out.rotated, text.number("partial_rotary_factor", 0.25, 1, true));
    }
    if (text.has("rope_scaling")) return text.unsupported("rope_scaling", "without it");
    DGEMMA_TRY(const JsonFields both, text.nested("rope_parameters"));
    if (both.has("rope_theta") || both.has("rope_type")) {
        return both.wrong(both.has("rope_theta") ? "rope_theta" : "rope_type",
                          "inside \"sliding_attention\" and \"full_attention\", one for each kind of layer");
    }
    DGEMMA_TRY(const JsonFields rope, both.nested(full ? "full_attention" : "sliding_attention"));
    if (rope.object() == nullptr) return out;
    DGEMMA_TRY(out.theta, rope.number("rope_theta", out.theta, most_theta, false));
    DGEMMA_TRY(const std::string type, rope.text("rope_type", full ? "proportional" : "default"));
    if (type == "proportional") {
        DGEMMA_TRY(out.rotated, rope.number("partial_rotary_factor", full ? out.rotated : 1, 1, true));
    } else if (type == "default") {
        // A partial default rope counts its exponents over the rotated part only: another layout.
        DGEMMA_TRY(out.rotated, rope.number("partial_rotary_factor", 1, 1, true));
        if (out.rotated != 1)
            return rope.unsupported("partial_rotary_factor", "1 with rope_type \"default\"");
    } else {
        return rope.unsupported("rope_type", "\"default\" and \"proportional\"");
    }
    DGEMMA_TRY(const double factor, rope.number("factor", 1, 1e6, false));
    if (factor != 1) return rope.unsupported("factor", "1");
    return out;
}

// The kinds of the layers: as listed, else five sliding and one full in turn; the last one is always full
// (contract/model.md 1.2).
Result<std::vector<LayerKind>> read_kinds(const JsonFields& text, int layers) {
    std::vector<LayerKind> out;
    const json* list = text.find("layer_types");
    if (list == nullptr) {
        for (int l = 0; l < layers; ++l)
            out.push_back((l + 1) % 6 == 0 ? LayerKind::full : LayerKind::sliding);
    } else {
        if (!list->is_array() || list->size() != static_cast<std::size_t>(layers)) {
            return text.wrong("layer_types", list->is_array()
                                                 ? fmt::format("as long as the model, {} entries (it has {})",
                                                               layers, list->size())
                                                 : fmt::format("a list of {} layer kinds", layers));
        }
        for (std::size_t l = 0; l < list->size(); ++l) {
            const json& kind = (*list)[l];
            if (kind == "sliding_attention") {
                out.push_back(LayerKind::sliding);
            } else if (kind == "full_attention") {
                out.push_back(LayerKind::full);
            } else {
                return text.unsupported_item(fmt::format("layer_types[{}]", l), kind,
                                             "\"sliding_attention\" and \"full_attention\"");
            }
        }
    }
    out.back() = LayerKind::full;
    return out;
}

// The entry of per_layer_config for each layer, null where it has none.
Result<std::vector<const json*>> read_own(const JsonFields& text, int layers) {
    std::vector<const json*> out(static_cast<std::size_t>(layers));
    DGEMMA_TRY(const JsonFields own, text.nested("per_layer_config"));
    if (own.object() == nullptr) return out;
    for (const auto& [key, value] : own.object()->items()) {
        int layer = -1;
        const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
        if (error != std::errc() || rest != key.data() + key.size() || layer < 0 || layer >= layers) {
            return text.wrong("per_layer_config",
                              fmt::format("an object whose keys are layers from 0 to {} (it has {})",
                                          layers - 1, quote(key)));
        }
        out[static_cast<std::size_t>(layer)] = &value;
    }
    return out;
}

Status read_layers(const JsonFields& text, std::string_view where, TextConfig& out) {
    DGEMMA_TRY(const int layers, text.integer("num_hidden_layers", 30, 1, most_layers));
    DGEMMA_TRY(const auto kinds, read_kinds(text, layers));
    DGEMMA_TRY(const auto own, read_own(text, layers));
    DGEMMA_TRY(const Rope sliding, read_rope(text, LayerKind::sliding));
    DGEMMA_TRY(const Rope full, read_rope(text, LayerKind::full));
    DGEMMA_TRY(const int kv_heads, text.integer("num_key_value_heads", 4, 1, most_heads));
    DGEMMA_TRY(const int head_dim, text.integer("head_dim", 256, 2, most_head_dim));
    // A configuration written with per_layer_config lists there whatever differs from the plain keys, and has
    // no global_* keys; the class default of global_head_dim belongs to the older spelling.
    const int absent_head_dim = text.has("per_layer_config") ? head_dim : 512;
    DGEMMA_TRY(const int full_head_dim, text.integer("global_head_dim", absent_head_dim, 2, most_head_dim));
    DGEMMA_TRY(const int full_kv_heads, text.integer("num_global_key_value_heads", kv_heads, 1, most_heads));

    for (std::size_t l = 0; l < kinds.size(); ++l) {
        const bool is_full = kinds[l] == LayerKind::full;
        const Rope& rope = is_full ? full : sliding;
        LayerConfig layer;
        layer.kind = kinds[l];
        const std::string prefix = fmt::format("text_config.per_layer_config.{}.", l);
        const JsonFields fields(own[l], std::string(where), prefix);
        if (own[l] != nullptr && !own[l]->is_object() && !own[l]->is_null()) {
            return Error{
                ErrorKind::invalid,
                fmt::format("In {}, text_config.per_layer_config.{} is {}, but must be an object; correct "
                            "it or download the file again.",
                            quote(where), l, JsonFields::words_for(own[l]))};
        }
        DGEMMA_TRY(layer.head_dim,
                   fields.integer("head_dim", is_full ? full_head_dim : head_dim, 2, most_head_dim));
        DGEMMA_TRY(layer.kv_heads,
                   fields.integer("num_key_value_heads", is_full ? full_kv_heads : kv_heads, 1, most_heads));
        if (fields.object() != nullptr && fields.object()->is_object()) {
            for (const auto& [key, value] : fields.object()->items()) {
                if (key == "head_dim" || key == "num_key_value_heads" || value.is_null()) continue;
                const json* shared = text.find(key);
                if (shared == nullptr || *shared != value) {
                    return fields.unsupported(quote(key), "the same value of that key in every layer");
                }
            }
        }
        if (layer.head_dim % 2 != 0 || out.heads % layer.kv_heads != 0) {
            const bool odd = layer.head_dim % 2 != 0;
            return Error{ErrorKind::invalid,
                         odd ? fmt::format("In {}, layer {} has head_dim {}, but it must be even; correct it "
                                           "or download the file again.",
                                           quote(where), l, layer.head_dim)
                             : fmt::format("In {}, layer {} has {} query heads for {} key/value heads, which "
                                           "does not divide; correct it "
                                           "or download the file again.",
                                           quote(where), l, out.heads, layer.kv_heads)};
        }
        layer.rope_theta = static_cast<float>(rope.theta);
        layer.rotated_pairs = static_cast<int>(std::floor(rope.rotated * layer.head_dim / 2));
        out.layers.push_back(layer);
    }
    return {};
}

Status read_text_config(const JsonFields& text, std::string_view where, TextConfig& out) {
    DGEMMA_TRY(out.vocab_size, text.integer("vocab_size", 262144, 1, most_vocabulary));
    DGEMMA_TRY(out.hidden_size, text.integer("hidden_size", 2304, 1, most_hidden));
    DGEMMA_TRY(out.intermediate_size, text.integer("intermediate_size", 9216, 1, most_width));
    DGEMMA_TRY(out.heads, text.integer("num_attention_heads", 8, 1, most_heads));
    DGEMMA_TRY(out.sliding_window, text.integer("sliding_window", 512, 1, most_positions));
    DGEMMA_TRY(out.experts, text.integer("num_experts", std::nullopt, 1, most_experts));
    DGEMMA_TRY(out.top_k, text.integer("top_k_experts", std::nullopt, 1, out.experts));
    DGEMMA_TRY(out.expert_size, text.integer("moe_intermediate_size", std::nullopt, 1, most_width));
    DGEMMA_TRY(out.max_positions, text.integer("max_position_embeddings", 131072, 1, most_positions));
    DGEMMA_TRY(const double eps, text.number("rms_norm_eps", 1e-6, 1, false));
    DGEMMA_TRY(const double softcap, text.number("final_logit_softcapping", 30, 1e6, false));
    out.rms_eps = static_cast<float>(eps);
    out.final_softcap = static_cast<float>(softcap);

    DGEMMA_TRY(const std::string activation, text.text("hidden_activation", "gelu_pytorch_tanh"));
    if (activation != "gelu_pytorch_tanh")
        return text.unsupported("hidden_activation", "\"gelu_pytorch_tanh\"");
    DGEMMA_TRY(const bool bias, text.boolean("attention_bias", false));
    if (bias) return text.unsupported("attention_bias", "false");
    const json* bidirectional = text.find("use_bidirectional_attention");
    out.bidirectional_images = bidirectional != nullptr && *bidirectional == "vision";
    if (bidirectional != nullptr && !out.bidirectional_images && *bidirectional != false) {
        return text.unsupported("use_bidirectional_attention", "\"vision\" and null");
    }
    return read_layers(text, where, out);
}

// An id given in config.json must be one of the vocabulary. The class defaults of the image ids are those of
// the large vocabulary; a small model without a vision tower need not name its own.
Status read_ids(const JsonFields& top, const JsonFields& text, Config& config) {
    const int last = config.text.vocab_size - 1;
    const auto read = [&](const char* key, int& id, bool needed) -> Status {
        const JsonFields& fields = top.has(key) ? top : text;
        if (!needed && !fields.has(key)) return {};
        DGEMMA_TRY(id, fields.integer(key, needed && id > last ? std::nullopt : std::optional(id), 0, last));
        return {};
    };
    const bool images = config.vision.has_value();
    DGEMMA_CHECK(read("pad_token_id", config.pad_id, true));
    DGEMMA_CHECK(read("bos_token_id", config.bos_id, true));
    DGEMMA_CHECK(read("boi_token_id", config.boi_id, images));
    DGEMMA_CHECK(read("eoi_token_id", config.eoi_id, images));
    DGEMMA_CHECK(read("image_token_id", config.image_id, images));
    DGEMMA_TRY(config.eos_ids, (top.has("eos_token_id") ? top : text).integers("eos_token_id", 0, last));
    if (config.eos_ids.empty() && last >= 1) config.eos_ids.push_back(1);
    return {};
}

Status read_dtype(const JsonFields& top, const JsonFields& text, Config& config) {
    const JsonFields& fields = top.has("dtype") || top.has("torch_dtype") ? top : text;
    const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
    DGEMMA_TRY(std::string name, fields.text(key, "bfloat16"));
    if (name.rfind("torch.", 0) == 0) name.erase(0, 6);
    if (name == "bfloat16") {
        config.dtype = Dtype::bf16;
    } else if (name == "float16") {
        config.dtype = Dtype::f16;
    } else if (name == "float32") {
        config.dtype = Dtype::f32;
    } else {
        return fields.unsupported(key, "bfloat16, float16 and float32");
    }
    return {};
}

Status read_quantization(const JsonFields& fields, Config& config) {
    for (const char* key : {"quantization_config", "quantization"}) {
        DGEMMA_TRY(const JsonFields inner, fields.nested(key));
        if (inner.object() == nullptr || inner.object()->empty() || !config.quantization.empty()) continue;
        // MLX writes bits and group_size without naming a method.
        DGEMMA_TRY(config.quantization, inner.text("quant_method", "mlx"));
    }
    return {};
}

}  // namespace

Result<Config> parse_config(std::string_view text, std::string_view where) {
    DGEMMA_TRY(const json root, parse_object(text, where));
    const JsonFields top(&root, std::string(where), "");
    Config config;
    DGEMMA_CHECK(read_architecture(top, where, config));
    DGEMMA_TRY(const JsonFields text_fields, top.nested("text_config"));
    DGEMMA_CHECK(read_quantization(top, config));
    DGEMMA_CHECK(read_quantization(text_fields, config));
    DGEMMA_CHECK(read_dtype(top, text_fields, config));
    DGEMMA_CHECK(read_text_config(text_fields, where, config.text));
    DGEMMA_TRY(config.vision, parse_vision_config(top));
    DGEMMA_TRY(config.canvas_length, top.integer("canvas_length", 256, 1, most_canvas));
    const JsonFields& size = top.has("self_conditioning_size") ? top : text_fields;
    DGEMMA_TRY(config.text.self_conditioning_size,
               size.integer("self_conditioning_size", config.text.intermediate_size, 1, most_width));
    DGEMMA_TRY(const bool tied, top.boolean("tie_word_embeddings", true));
    if (!tied) return top.unsupported("tie_word_embeddings", "true: the head is the embedding");
    DGEMMA_CHECK(read_ids(top, text_fields, config));
    return config;
}

Result<Config> read_config(const files::Checkpoint& checkpoint) {
    DGEMMA_TRY(const std::string text, checkpoint.config_text());
    return parse_config(text, (checkpoint.path() / "config.json").native());
}

}  // namespace dgemma::model
