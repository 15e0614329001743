// Working memory of a pass that grows and stays.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace dgemma::backend::cpu {

// Floats whose contents are undefined at every request. The block is kept: given back to the system after
// each layer, tens of MiB would be zeroed and faulted in again for the next one, by one thread.
class Scratch {
  public:
    // At least n floats, aligned to 64 bytes; what an earlier call gave is no longer valid.
    [[nodiscard]] float* floats(std::int64_t n) {
        const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
        if (buffer_.size() < bytes) {
            buffer_ = Buffer();  // first, so that the two are never there together
            buffer_ = Buffer(bytes);
        }
        return data();
    }
    [[nodiscard]] float* data() { return buffer_.as<float>().data(); }
    [[nodiscard]] const float* data() const { return buffer_.as<float>().data(); }

  private:
    Buffer buffer_;
};

}  // namespace dgemma::backend::cpu
