// Matrix products of the plain backend: rows packed into panels, weights packed tile by tile as they are
// read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/plain_kernels.h"
#include "base/tensor.h"
#include "base/thread_pool.h"

namespace dgemma::backend::cpu {

// Rows [n, k] as panels of `kernels.rows` rows, each [k][rows], the last one filled up with zeros: a row goes
// through the same instructions however many share its panel.
class Panels {
  public:
    Panels(const PlainKernels& kernels, std::int64_t max_rows, std::int64_t max_cols)
        : height_(kernels.rows),
          data_(static_cast<std::size_t>((max_rows + height_ - 1) / height_ * height_ * max_cols)) {}

    // source(r) -> const float*, row r [k]
    template <class Source>
    void pack(ThreadPool& pool, std::int64_t rows, std::int64_t k, Source source) {
        pool.parallel_for((rows + height_ - 1) / height_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t p = begin; p < end; ++p) pack_one(p, rows, k, source);
        });
    }
    template <class Source>
    void pack_here(std::int64_t rows, std::int64_t k, Source source) {
        for (std::int64_t p = 0; p < (rows + height_ - 1) / height_; ++p) pack_one(p, rows, k, source);
    }
    [[nodiscard]] const float* panel(std::int64_t p, std::int64_t k) const {
        return data_.data() + p * height_ * k;
    }

  private:
    template <class Source>
    void pack_one(std::int64_t p, std::int64_t rows, std::int64_t k, Source source) {
        float* to = data_.data() + p * height_ * k;
        for (std::int64_t i = 0; i < height_; ++i) {
            const std::int64_t r = p * height_ + i;
            if (r < rows) {
                const float* from = source(r);
                for (std::int64_t c = 0; c < k; ++c) to[c * height_ + i] = from[c];
            } else {
                for (std::int64_t c = 0; c < k; ++c) to[c * height_ + i] = 0.0f;
            }
        }
    }

    std::int64_t height_;
    std::vector<float> data_;
};

// out [rows, outs] = x [rows, ins] W^T, W the [outs, ins] block of `weight` that begins at element `first`.
struct Product {
    const Panels* x = nullptr;
    std::int64_t rows = 0;
    const Tensor* weight = nullptr;
    std::int64_t first = 0;
    std::int64_t ins = 0, outs = 0;
    float* out = nullptr;
};

class Products {
  public:
    Products(const PlainKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    // All products in one loop over the threads; results rounded to bf16 if `bf16`.
    void run(std::span<const Product> products, bool bf16);

    // out [rows, cols] (+)= p [rows, count] T, T the rows [first, first + count) of table [*, cols].
    void times_rows(const Panels& p, std::int64_t rows, std::int64_t count, const Tensor& table,
                    std::int64_t first, std::int64_t cols, float* out, bool add);

  private:
    const PlainKernels& kernels_;
    ThreadPool& pool_;
};

void plain_attention(const AttentionArgs& args, const PlainKernels& kernels, ThreadPool& pool, bool bf16);

// Rotates every head of a row; the angles of a position are computed once for all heads.
void rotate_row(float* x, std::int64_t cols, std::int64_t head_dim, const float* frequencies,
                std::int32_t position, bool bf16);

// Scratch of at least n floats that belongs to the calling thread; `slot` tells apart what is used at the
// same time.
float* thread_scratch(int slot, std::int64_t n);

}  // namespace dgemma::backend::cpu
