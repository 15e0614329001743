// Models of random weights in real shapes, so that speed can be measured where the real weights are not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/quantizers.h"
#include "model/config.h"
#include "model/pack_plan.h"

namespace dgemma::model {

// 26b: the shapes of diffusiongemma-26B-A4B-it. demo: those of the embedded demo model. tiny: 128 experts and
// a few hundred thousand numbers, for tests. None has a vision tower.
std::span<const std::string_view> preset_names();

// The text of its config.json. layers 0: as many as the preset has. Errors: usage, for an unknown preset.
Result<std::string> preset_config(std::string_view preset, int layers);

// The published values of generation_config.json.
std::string preset_generation_config();

// How the head's rows come out.
enum class LogitShape : std::uint8_t {
    flat,    // nothing stands out: no entry falls below e^-10 of its row's maximum
    peaked,  // at a temperature of 0.8 at most 1 % of the entries reach e^-10 of it
};

// The rows of one tensor of a synthetic model: numbers determined by seed, tensor and place.
//
// Matrices are scaled by 1 / sqrt(in), so that rows of unit size stay about that. Norms are 1, but
//   * q_norm and k_norm, such that query times key has a standard deviation of 2: attention is not divided by
//     sqrt(head) and would look at a single key else, or at all alike if they were much smaller;
//   * post_attention_layernorm is 0.3: what attention adds is alike for all rows of a canvas, and the more of
//     it there is the fewer experts they choose;
//   * post_feedforward_layernorm is 3: what the layers add outweighs the token that a row began with, whose
//     own logit would else stand far above all others, the further the fewer layers there are;
//   * the last norm says how peaked the logits are.
// One embedding row in ten is three times as long as the others. That gives the logits of a row the heavy
// tail that a peaked one needs, without the softcap flattening all of them.
std::unique_ptr<files::RowSource> synthetic_rows(const PlannedTensor& tensor, const Config& config,
                                                 LogitShape logits, std::uint64_t seed);

}  // namespace dgemma::model
