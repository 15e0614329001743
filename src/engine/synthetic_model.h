// A model of random weights made in the memory of a GPU, in the shapes of a preset: to measure with, without
// a file. (`synth` writes one to disk.)
#pragma once

#include <memory>
#include <string_view>

#include "base/weight_view.h"
#include "engine/loaded_model.h"

namespace dgemma::engine {

// How a profile of docs/PACK.md stores what stays in 4 or 8 bits on a GPU. Everything else is bf16 there.
struct BranchFormats {
    Encoding experts = Encoding::plain, dense = Encoding::plain;
    // Of attention's projections: fp8_row where they are multiplied as such, else bf16.
    Encoding attention = Encoding::plain;
};
// Errors: usage, for a name that is no profile.
// precision: what the passes are to be in. Mixed keeps E4M3 beside E4M3 experts
// (CudaOptions::e4m3_activations).
Result<BranchFormats> branch_formats(std::string_view profile,
                                     backend::Precision precision = backend::Precision::bf16);

// preset, layers: as model::preset_config. Weights are scaled as synth does it. Errors: usage (preset,
// profile), unsupported (no GPU, or one that does not compute in the profile's formats), io (memory).
Result<std::unique_ptr<LoadedModel>> synthesize_model(std::string_view preset, int layers,
                                                      std::string_view profile, const LoadOptions& options);

}  // namespace dgemma::engine
