// Files made for one test: a directory of its own, and safetensors files written by hand, broken ones too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/tensor.h"

namespace dgemma::testing {

// A fresh directory that is removed with everything in it.
class ScratchDir {
  public:
    ScratchDir();
    ~ScratchDir();
    ScratchDir(const ScratchDir&) = delete;
    ScratchDir& operator=(const ScratchDir&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    // Writes a file below the directory, making the folders it needs; returns its path.
    std::filesystem::path write(const std::filesystem::path& name, std::string_view bytes) const;
    // Copies the files of another directory here, writable.
    void copy_from(const std::filesystem::path& directory) const;

  private:
    std::filesystem::path path_;
};

// Eight bytes of length, the header, the data: a safetensors file with any header.
std::string safetensors_bytes(std::string_view header, std::string_view data);

// What a tensor of a well-formed file is; its data are zeros.
struct TensorSpec {
    std::string dtype;  // "BF16"
    Shape shape;
};
std::string safetensors_of(const std::map<std::string, TensorSpec>& tensors);

}  // namespace dgemma::testing
