// Random inputs and poisoned outputs for kernel tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "backend/backend.h"
#include "base/tensor.h"

namespace dgemma::testing {

// Numbers about N(0, scale) that differ from run to run of the generator, not of the test.
class RandomData {
  public:
    explicit RandomData(std::uint32_t seed) : engine_(seed) {}

    std::vector<float> floats(std::int64_t n, float scale = 1, float mean = 0) {
        std::normal_distribution<float> normal(mean, scale);
        std::vector<float> out(static_cast<std::size_t>(n));
        for (float& x : out) x = normal(engine_);
        return out;
    }
    std::vector<std::int32_t> ints(std::int64_t n, std::int32_t end) {
        std::vector<std::int32_t> out(static_cast<std::size_t>(n));
        for (std::int32_t& x : out)
            x = static_cast<std::int32_t>(engine_() % static_cast<std::uint32_t>(end));
        return out;
    }

  private:
    std::mt19937 engine_;
};

// A weight's bytes in host memory, at an odd address where `misaligned`: files promise no alignment.
class HostTensor {
  public:
    HostTensor(const std::vector<float>& values, Dtype type, Shape shape, bool misaligned = false)
        : bytes_(values.size() * size_of(type) + 1), offset_(misaligned ? 1 : 0) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::uint16_t half = f32_to_bf16(values[i]);
            std::byte* to = bytes_.data() + offset_ + i * size_of(type);
            if (type == Dtype::bf16) {
                std::memcpy(to, &half, 2);
            } else {
                std::memcpy(to, &values[i], 4);
            }
        }
        view = {bytes_.data() + offset_, type, std::move(shape)};
    }
    HostTensor(const HostTensor&) = delete;
    HostTensor& operator=(const HostTensor&) = delete;

    Tensor view;

  private:
    std::vector<std::byte> bytes_;
    std::size_t offset_;
};

// An activation matrix on a backend, filled with NaN until something is written.
class DeviceMat {
  public:
    DeviceMat(backend::Backend& backend, std::int64_t rows, std::int64_t cols)
        : backend_(backend),
          storage_(
              take(backend.allocate(static_cast<std::size_t>(rows * cols) * backend.activation_bytes()))) {
        mat = {storage_->data(), rows, cols};
        backend_.upload(std::vector<float>(static_cast<std::size_t>(rows * cols),
                                           std::numeric_limits<float>::quiet_NaN()),
                        mat);
    }
    DeviceMat(backend::Backend& backend, std::int64_t rows, std::int64_t cols,
              const std::vector<float>& values)
        : DeviceMat(backend, rows, cols) {
        backend_.upload(values, mat);
    }
    [[nodiscard]] std::vector<float> values() const {
        std::vector<float> out(static_cast<std::size_t>(mat.rows * mat.cols));
        backend_.download(mat, out);
        return out;
    }

    backend::Mat mat;

    template <class T>
    static T take(Result<T> result) {
        if (!result) throw std::runtime_error(result.error().message);
        return std::move(result).value();
    }

  private:
    backend::Backend& backend_;
    std::unique_ptr<backend::Storage> storage_;
};

// |got - want| / |want|, over all elements; infinite where a NaN was left.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 1e-30;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double d = static_cast<double>(got[i]) - want[i];
        difference += d * d;
        norm += static_cast<double>(want[i]) * want[i];
    }
    const double error = std::sqrt(difference / norm);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace dgemma::testing
