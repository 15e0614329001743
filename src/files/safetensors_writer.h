// Numbers to a safetensors file that any of the format's readers opens (contract/checkpoints.md 1).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "base/result.h"
#include "base/tensor.h"

namespace dgemma::files {

struct F32Tensor {
    Shape shape;  // its elements are as many as the values
    std::span<const float> values;
};

// Writes a file beside `path` and renames it: nothing half-written ever stands there. Errors: io, naming the
// path; invalid, for a shape that does not fit its values.
Status write_safetensors(const std::filesystem::path& path, const std::map<std::string, F32Tensor>& tensors);

}  // namespace dgemma::files
