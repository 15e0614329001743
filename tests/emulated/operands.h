// Weights and rows in E4M3 for the emulated kernels, whole numbers of which nothing is rounded or random
// ones.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "backend/cuda/e4m3_operands.h"
#include "base/e4m3_rows.h"
#include "base/tensor.h"

namespace dgemma::emulated {

// Aligned as device memory is, and poisoned: every bit is set.
template <class T>
class Memory {
  public:
    explicit Memory(std::int64_t count)
        : count_(static_cast<std::size_t>(count)),
          data_(static_cast<T*>(std::aligned_alloc(256, (count_ * sizeof(T) + 256) / 256 * 256)),
                &std::free) {
        std::memset(static_cast<void*>(data_.get()), 0xFF, (count_ * sizeof(T) + 256) / 256 * 256);
    }
    T& operator[](std::int64_t i) {
        if (i < 0 || static_cast<std::size_t>(i) >= count_) throw std::out_of_range("memory");
        return data_.get()[i];
    }
    T* data() { return data_.get(); }

  private:
    std::size_t count_;
    std::unique_ptr<T, decltype(&std::free)> data_;
};

class Numbers {
  public:
    explicit Numbers(bool of_whole_numbers) : exact(of_whole_numbers) {}
    int whole(int least, int most) { return std::uniform_int_distribution<int>(least, most)(engine_); }
    float normal() { return normal_(engine_); }
    const bool exact;

  private:
    std::mt19937 engine_{3};
    std::normal_distribution<float> normal_;
};

// -1, 0, 1 with scales that are powers of two, or random.
struct Codes {
    Codes(Numbers& n, std::int64_t groups, std::int64_t outs, std::int64_t ins)
        : codes(groups * outs * ins),
          scales(groups * outs),
          matrix{codes.data(), scales.data(), groups, outs, ins} {
        for (std::int64_t i = 0; i < groups * outs * ins; ++i)
            codes[i] = f32_to_e4m3(n.exact ? static_cast<float>(n.whole(-1, 1)) : 10 * n.normal());
        for (std::int64_t i = 0; i < groups * outs; ++i)
            scales[i] = n.exact ? 1.0f / static_cast<float>(4 << n.whole(0, 2)) : 0.1f + 0.01f * n.normal();
    }
    [[nodiscard]] double value(std::int64_t row, std::int64_t column) {
        return e4m3_to_f32(codes[row * matrix.ins + column]);
    }
    Memory<std::uint8_t> codes;
    Memory<float> scales;
    backend::cuda::E4m3Matrix matrix;
};

// Rows of -3 to 3 with one 448, or random.
struct Rows {
    Rows(Numbers& n, std::int64_t rows, std::int64_t width) : codes(rows * width), scales(rows), cols(width) {
        std::vector<float> x(static_cast<std::size_t>(cols));
        for (std::int64_t r = 0; r < rows; ++r) {
            for (float& v : x) v = n.exact ? static_cast<float>(n.whole(-3, 3)) : round_bf16(n.normal());
            if (n.exact) x[static_cast<std::size_t>(n.whole(0, static_cast<int>(cols) - 1))] = 448;
            scales[r] = quantise_e4m3(x, std::span(codes.data() + r * cols, x.size()));
        }
    }
    [[nodiscard]] double value(std::int64_t row, std::int64_t column) {
        return e4m3_to_f32(codes[row * cols + column]);
    }
    [[nodiscard]] backend::cuda::E4m3Rows view() { return {codes.data(), scales.data()}; }
    Memory<std::uint8_t> codes;
    Memory<float> scales;
    std::int64_t cols;
};

}  // namespace dgemma::emulated
