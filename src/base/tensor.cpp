#include "base/tensor.h"

#include <cassert>
#include <new>

namespace dgemma {

namespace {
template <class T>
T load(const std::byte* data, std::int64_t i) {
    T value;
    std::memcpy(&value, data + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
}
}  // namespace

std::string to_string(const Shape& shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (i != 0) out += ", ";
        out += std::to_string(shape[i]);
    }
    return out + "]";
}

float element_as_f32(const Tensor& tensor, std::int64_t i) {
    switch (tensor.type) {
        case Dtype::f32:
            return load<float>(tensor.data, i);
        case Dtype::bf16:
            return bf16_to_f32(load<std::uint16_t>(tensor.data, i));
        case Dtype::f16:
            return f16_to_f32(load<std::uint16_t>(tensor.data, i));
        default:
            assert(!"a floating type");
            return 0;
    }
}

std::vector<float> to_f32(const Tensor& tensor) {
    std::vector<float> out(static_cast<std::size_t>(tensor.elements()));
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = element_as_f32(tensor, static_cast<std::int64_t>(i));
    return out;
}

std::vector<std::int32_t> to_i32(const Tensor& tensor) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tensor.elements()));
    for (std::size_t n = 0; n < out.size(); ++n) {
        const auto i = static_cast<std::int64_t>(n);
        switch (tensor.type) {
            case Dtype::i32:
                out[n] = load<std::int32_t>(tensor.data, i);
                break;
            case Dtype::u8:
            case Dtype::boolean:
                out[n] = load<std::uint8_t>(tensor.data, i);
                break;
            case Dtype::i64:
                out[n] = static_cast<std::int32_t>(load<std::int64_t>(tensor.data, i));
                break;
            default:
                assert(!"an integer type");
                break;
        }
    }
    return out;
}

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    const std::size_t rounded = (bytes + 63) / 64 * 64;
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (!bytes_) throw std::bad_alloc();
}

}  // namespace dgemma
