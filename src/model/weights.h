// The weights of the text stack by their meaning (contract/model.md 2.1, 2.2), prepared for a backend.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "files/checkpoint.h"
#include "model/config.h"

namespace dgemma::model {

using WeightPtr = std::unique_ptr<backend::Weight>;

struct LayerWeights {
    WeightPtr input_norm, post_attention_norm;  // [H]
    WeightPtr q_proj, k_proj, v_proj, o_proj;   // v_proj is null on full layers: v is the raw k projection
    WeightPtr q_norm, k_norm;                   // [D]
    WeightPtr dense_pre_norm, dense_post_norm;  // pre_feedforward_layernorm, post_feedforward_layernorm_1
    WeightPtr experts_pre_norm,
        experts_post_norm;                    // pre_feedforward_layernorm_2, post_feedforward_layernorm_2
    WeightPtr post_norm;                      // post_feedforward_layernorm
    WeightPtr gate_proj, up_proj, down_proj;  // dense MLP
    WeightPtr router_scale, router_proj, per_expert_scale;
    WeightPtr gate_up, expert_down;            // [E, 2 * width, H], [E, H, width]
    WeightPtr decoder_scalar, encoder_scalar;  // [1]; the encoder's may be the decoder's tensor
    WeightPtr frequencies;                     // [D/2], rotary, f32
};

struct Weights {
    WeightPtr embedding;  // [V, H]: lookup, head, and the matrix of soft embeddings
    WeightPtr final_norm;
    WeightPtr sc_pre_norm, sc_gate, sc_up, sc_down;
    std::vector<LayerWeights> layers;
    float embedding_scale = 0;  // sqrt(H), rounded to the type of the embedding matrix
};

struct WeightOptions {
    // A model cast to bf16 after construction rounds its rotary frequencies too, as the run behind one of the
    // goldens did (contract/model.md 3, "Both"). A normal load keeps them f32.
    bool round_frequencies = false;
};

// Whether the experts are stored in E4M3 (Encoding::fp8_row), as those of the profile fp8.
bool experts_in_e4m3(const files::Checkpoint& checkpoint);

// Errors: those of check_tensors, and what the backend refuses.
Result<Weights> load_weights(const files::Checkpoint& checkpoint, const Config& config,
                             backend::Backend& backend, const WeightOptions& options = {});

// Inverse frequencies of a layer [D/2] in f32 (contract/model.md 3): theta^(-2i/D), zero from `rotated_pairs`
// on.
std::vector<float> rotary_frequencies(const LayerConfig& layer);

}  // namespace dgemma::model
