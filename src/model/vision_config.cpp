#include "model/vision_config.h"

#include <string>

namespace dgemma::model {

Result<std::optional<VisionConfig>> parse_vision_config(const JsonFields& top) {
    constexpr int most_width = 1 << 20, most_heads = 1024;
    DGEMMA_TRY(const JsonFields fields, top.nested("vision_config"));
    if (fields.object() == nullptr) return std::optional<VisionConfig>();
    DGEMMA_TRY(const std::string type, fields.text("model_type", "gemma4_vision"));
    if (type != "gemma4_vision") return fields.unsupported("model_type", "\"gemma4_vision\"");

    VisionConfig out;
    DGEMMA_TRY(out.hidden_size, fields.integer("hidden_size", 768, 1, most_width));
    DGEMMA_TRY(out.intermediate_size, fields.integer("intermediate_size", 3072, 1, most_width));
    DGEMMA_TRY(out.layers, fields.integer("num_hidden_layers", 16, 1, 1024));
    DGEMMA_TRY(out.heads, fields.integer("num_attention_heads", 12, 1, most_heads));
    DGEMMA_TRY(out.kv_heads, fields.integer("num_key_value_heads", 12, 1, most_heads));
    if (out.heads % out.kv_heads != 0)
        return fields.wrong("num_key_value_heads", "a divisor of num_attention_heads");
    DGEMMA_TRY(out.head_dim, fields.integer("head_dim", 64, 4, 4096));
    // Rotary pairs of x and of y: two halves, each of pairs.
    if (out.head_dim % 4 != 0) return fields.wrong("head_dim", "divisible by 4");
    DGEMMA_TRY(out.patch_size, fields.integer("patch_size", 16, 1, 256));
    DGEMMA_TRY(out.pooling, fields.integer("pooling_kernel_size", 3, 1, 64));
    DGEMMA_TRY(out.position_rows, fields.integer("position_embedding_size", 10240, 1, 1 << 20));
    DGEMMA_TRY(const int top_tokens, top.integer("vision_soft_tokens_per_image", 280, 1, 1 << 16));
    DGEMMA_TRY(out.soft_tokens, fields.integer("default_output_length", top_tokens, 1, 1 << 16));
    DGEMMA_TRY(const double eps, fields.number("rms_norm_eps", 1e-6, 1, false));
    out.rms_eps = static_cast<float>(eps);
    DGEMMA_TRY(out.standardize, fields.boolean("standardize", false));
    DGEMMA_TRY(out.clipped_linears, fields.boolean("use_clipped_linears", false));

    DGEMMA_TRY(const JsonFields rope, fields.nested("rope_parameters"));
    DGEMMA_TRY(const double flat_theta, fields.number("rope_theta", 100, 1e12, false));
    DGEMMA_TRY(const double theta, rope.number("rope_theta", flat_theta, 1e12, false));
    out.rope_theta = static_cast<float>(theta);
    DGEMMA_TRY(const std::string rope_type, rope.text("rope_type", "default"));
    if (rope_type != "default" && rope_type != "axial")
        return rope.unsupported("rope_type", "\"default\" and \"axial\"");
    DGEMMA_TRY(const std::string activation, fields.text("hidden_activation", "gelu_pytorch_tanh"));
    if (activation != "gelu_pytorch_tanh")
        return fields.unsupported("hidden_activation", "\"gelu_pytorch_tanh\"");
    DGEMMA_TRY(const bool bias, fields.boolean("attention_bias", false));
    if (bias) return fields.unsupported("attention_bias", "false");
    return std::optional<VisionConfig>(out);
}

}  // namespace dgemma::model
