// What a checkpoint says of itself: the numbers of config.json and generation_config.json (contract/model.md
// 1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace dgemma::files {
class Checkpoint;
}

namespace dgemma::model {

enum class LayerKind : std::uint8_t { sliding, full };

// The geometry of one text layer. Sliding and full layers differ, and a `per_layer_config` entry may change
// any one.
struct LayerConfig {
    LayerKind kind = LayerKind::sliding;
    int head_dim = 0;
    int kv_heads = 0;
    float rope_theta = 0;
    int rotated_pairs = 0;  // of head_dim / 2; the others keep frequency 0 (contract 3, "RoPE, full layers")
};

struct TextConfig {
    int vocab_size = 0;
    int hidden_size = 0;
    int intermediate_size = 0;       // dense MLP
    int self_conditioning_size = 0;  // its MLP; intermediate_size unless config.json says otherwise
    int heads = 0;                   // query heads, the same in every layer
    int sliding_window = 0;          // counts the query itself
    int experts = 0;
    int top_k = 0;
    int expert_size = 0;
    int max_positions = 0;  // the context limit we hold a request to
    float rms_eps = 0;
    float final_softcap = 0;
    bool bidirectional_images = true;  // use_bidirectional_attention "vision"; null or absent: false
    std::vector<LayerConfig> layers;
};

struct VisionConfig {
    int hidden_size = 0, intermediate_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
    int patch_size = 0, pooling = 0, position_rows = 0, soft_tokens = 0;
    float rms_eps = 0, rope_theta = 0;
    bool standardize = false;
    bool clipped_linears = false;
};

struct Config {
    std::string model_type;    // "diffusion_gemma", or "diffusion_gemma4" of a release candidate
    std::string architecture;  // the class name, may be empty
    TextConfig text;
    std::optional<VisionConfig> vision;
    int canvas_length = 256;
    int pad_id = 0, bos_id = 2;
    int boi_id = 255999, eoi_id = 258882, image_id = 258880;
    Dtype dtype = Dtype::bf16;  // of the weights as config.json names it
    std::string quantization;   // quant_method, or empty where nothing is quantised
    std::vector<int> eos_ids;   // config.json's own list: generation_config's goes first
};

// The sampler a checkpoint asks for (contract/generation.md 1, 4 and 5).
enum class SamplerKind : std::uint8_t { entropy_bound, confidence_threshold };

// generation_config.json; an absent file, an absent key and an explicit null all mean the value written here.
struct GenerationConfig {
    int max_new_tokens = 256;
    int max_denoising_steps = 48;
    SamplerKind sampler = SamplerKind::entropy_bound;
    float entropy_bound = 0.1f;
    float threshold = 0.9f;  // of the confidence-threshold sampler
    double t_min = 0.4, t_max = 0.8;
    int stability_threshold = 1;
    float confidence_threshold = 0.005f;
    std::vector<int> eos_ids;  // empty: config.json's
    int pad_id = 0;
    int bos_id = 2;
};

// The text of config.json -> Config. `where` names the file in messages. Errors: invalid (broken JSON, a
// wrong type, a nonsense number; names the key), unsupported (another architecture; names it and what we can
// run).
Result<Config> parse_config(std::string_view json, std::string_view where);

// That of a checkpoint. Errors: those of Checkpoint::config_text and parse_config.
Result<Config> read_config(const files::Checkpoint& checkpoint);

// The text of generation_config.json -> GenerationConfig, both spellings of contract/model.md 1.4. Errors: as
// above; an unknown `sampler_config` class is refused by name.
Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view where);

}  // namespace dgemma::model
