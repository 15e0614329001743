// The backends under test in tests/cuda, and weights and index matrices on them.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "backend/random_data.h"

namespace dgemma::testing {

// One way to run on the GPU. Generic: the kernels of compute capability 8.0 also on a newer card.
struct DeviceKind {
    backend::Precision precision;
    bool hopper_kernels;
};

inline std::string name_of_kind(const DeviceKind& kind) {
    return std::string(kind.precision == backend::Precision::bf16 ? "bf16" : "f32") +
           (kind.hopper_kernels ? "" : "_generic");
}

inline std::unique_ptr<backend::Backend> make_device(const DeviceKind& kind) {
    return DeviceMat::take(
        backend::make_cuda_backend(kind.precision, {.hopper_kernels = kind.hopper_kernels}));
}

inline std::unique_ptr<backend::Weight> weight(backend::Backend& b, const HostTensor& t) {
    return DeviceMat::take(b.prepare(t.view));
}

// A matrix of 4-byte elements, whatever the backend's activations are: expert ids, their weights.
class WideMat {
  public:
    WideMat(backend::Backend& b, std::int64_t rows, std::int64_t cols)
        : backend_(b), storage_(DeviceMat::take(b.allocate(static_cast<std::size_t>(rows * cols) * 4))) {
        mat = {storage_->data(), rows, cols};
    }
    template <class T>
    [[nodiscard]] std::vector<T> values() const {
        static_assert(sizeof(T) == 4);
        std::vector<T> out(static_cast<std::size_t>(mat.rows * mat.cols));
        backend_.read_memory(mat.data, std::as_writable_bytes(std::span(out)));
        return out;
    }
    backend::Mat mat;

  private:
    backend::Backend& backend_;
    std::unique_ptr<backend::Storage> storage_;
};

}  // namespace dgemma::testing
