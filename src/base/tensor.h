// Tensor: a view of elements somewhere. Buffer: the owner of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace dgemma {

using Shape = std::vector<std::int64_t>;

// Elements of a shape; 1 for a scalar.
inline std::int64_t elements_of(const Shape& shape) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
}

// "[128, 2816]"
std::string to_string(const Shape& shape);

// A read-only view of a dense row-major tensor. It owns nothing: the file mapping or Buffer behind it must
// outlive it. `data` may have any alignment (safetensors promises none), so typed access to a file goes
// through memcpy.
struct Tensor {
    const std::byte* data = nullptr;
    Dtype type = Dtype::f32;
    Shape shape;

    [[nodiscard]] std::int64_t elements() const { return elements_of(shape); }
    [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(type); }
    [[nodiscard]] explicit operator bool() const { return data != nullptr; }
};

// Element i as f32, whatever the floating type and the alignment. For tests and small tensors.
float element_as_f32(const Tensor& tensor, std::int64_t i);

// All elements as f32 (copies). For floating types.
std::vector<float> to_f32(const Tensor& tensor);

// All elements as i32 (copies). For integer types of at most 32 bits, and i64 whose values fit.
std::vector<std::int32_t> to_i32(const Tensor& tensor);

// Owner of bytes aligned to 64.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::size_t bytes);  // contents undefined

    [[nodiscard]] std::byte* data() { return bytes_.get(); }
    [[nodiscard]] const std::byte* data() const { return bytes_.get(); }
    [[nodiscard]] std::size_t size() const { return size_; }

    template <class T>
    [[nodiscard]] std::span<T> as() {
        return {reinterpret_cast<T*>(bytes_.get()), size_ / sizeof(T)};
    }
    template <class T>
    [[nodiscard]] std::span<const T> as() const {
        return {reinterpret_cast<const T*>(bytes_.get()), size_ / sizeof(T)};
    }

  private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<std::byte, Free> bytes_;
    std::size_t size_ = 0;
};

}  // namespace dgemma
