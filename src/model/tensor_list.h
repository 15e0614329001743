// The tensors a checkpoint must hold, by name and shape, and the comparison with what it does hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "files/checkpoint.h"
#include "model/config.h"

namespace dgemma::model {

// What a tensor is for; `info` sums by it.
enum class TensorClass : std::uint8_t {
    embedding,
    attention,
    dense,
    experts,
    router,
    norms,
    self_conditioning,
    scalars,
    vision,
};
std::string_view name_of(TensorClass group);  // "self-conditioning"

struct ExpectedTensor {
    std::string name;
    Shape shape;
    TensorClass group = TensorClass::norms;
    bool required = true;
    std::string other_name;  // accepted in its place; empty: none
};

// All tensors of a model (contract/model.md 2.1 to 2.3): the text stack, self-conditioning, the encoder's
// scalars (not required: the decoder's stand in for them), and the vision tower where config.json has one
// (not required).
std::vector<ExpectedTensor> expected_tensors(const Config& config);

// What was found beyond the expected.
struct TensorReport {
    bool has_vision = false;              // the vision tower is there
    std::vector<std::string> unexpected;  // belong to no part of the model: worth a warning
    // Copies of tied tensors and buffers that say nothing new (contract/model.md 2.4): lm_head.weight,
    // encoder copies of the decoder's weights, clip buffers of the vision tower. Not read.
    std::vector<std::string> ignored;
};

// What lies in a checkpoint whether or not it fits; has_vision: any of the tower.
TensorReport survey_tensors(const Config& config, const files::Checkpoint& checkpoint);

// Compares. Errors: unsupported, where the weights are quantised (files::check_plain_storage;
// config.quantization); invalid, where tensors are missing, have another shape, or are not f32, f16 or bf16.
// One message names them all, up to twenty of a kind. A vision tower may be absent as a whole, not in part.
Result<TensorReport> check_tensors(const Config& config, const files::Checkpoint& checkpoint);

// "a, b and 3 more": at most `most` of the names.
std::string name_list(const std::vector<std::string>& names, std::size_t most = 20);

}  // namespace dgemma::model
