// From flags to what the engine takes.
#pragma once

#include "base/result.h"
#include "cli/arguments.h"
#include "diffusion/options.h"
#include "engine/generator.h"

namespace dgemma::cli {

engine::LoadOptions load_options(const Arguments& arguments);

// A request with everything but the prompt: what the flags set, over `defaults`, the checkpoint's own.
// Errors: usage, for flags that contradict each other and numbers that the sampler refuses.
Result<engine::Request> request_of(const Arguments& arguments, const diffusion::Options& defaults);

}  // namespace dgemma::cli
