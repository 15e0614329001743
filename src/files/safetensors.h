// One safetensors file: its header checked whole, its tensors as views (contract/checkpoints.md 1).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/tensor.h"
#include "files/mapping.h"

namespace dgemma::files {

using TensorMap = std::map<std::string, Tensor, std::less<>>;

// An open file. The tensors are views of its mapping and live as long as it does; moving it does not move
// them. Data may start at any alignment.
class Safetensors {
  public:
    // Maps the file and checks its header. Errors: those of Mapping::open, and those of parse.
    static Result<Safetensors> open(const std::filesystem::path& path);

    // The same from bytes that the caller keeps alive. `where` names them in messages.
    // Errors, all `invalid` and naming the tensor: a header longer than the file or than 100 MB, broken JSON,
    // a name twice, a missing or mistyped key, offsets that are reversed, outside, overlapping, or that leave
    // bytes over, a shape that does not fit its bytes or overflows. `unsupported`: an element type we do not
    // know.
    static Result<Safetensors> parse(std::span<const std::byte> file, std::string_view where);

    [[nodiscard]] const TensorMap& tensors() const { return tensors_; }
    [[nodiscard]] const Tensor* find(std::string_view name) const;
    // The strings of "__metadata__"; empty where the file has none.
    [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const {
        return metadata_;
    }

  private:
    Mapping mapping_;
    TensorMap tensors_;
    std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace dgemma::files
