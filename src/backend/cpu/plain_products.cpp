#include "backend/cpu/plain_products.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/rows.h"

namespace dgemma::backend::cpu {

float* thread_scratch(int slot, std::int64_t n) {
    thread_local std::array<std::vector<float>, 6> scratch;
    std::vector<float>& own = scratch[static_cast<std::size_t>(slot)];
    if (static_cast<std::int64_t>(own.size()) < n) own.resize(static_cast<std::size_t>(n));
    return own.data();
}

void Products::run(std::span<const Product> products, bool bf16) {
    const std::int64_t width = kernels_.cols;
    std::vector<std::int64_t> first_item(products.size() + 1);
    for (std::size_t i = 0; i < products.size(); ++i)
        first_item[i + 1] = first_item[i] + (products[i].outs + width - 1) / width;

    const auto one_tile = [&](const Product& p, std::int64_t column) {
        const std::int64_t valid = std::min(width, p.outs - column);
        float* row = thread_scratch(0, p.ins);
        float* tile = thread_scratch(1, p.ins * width);  // [ins][width]
        for (std::int64_t j = 0; j < width; ++j) {
            if (j < valid) {
                load_f32(*p.weight, p.first + (column + j) * p.ins, p.ins, row);
                for (std::int64_t i = 0; i < p.ins; ++i) tile[i * width + j] = row[i];
            } else {
                for (std::int64_t i = 0; i < p.ins; ++i) tile[i * width + j] = 0.0f;
            }
        }
        float* c = thread_scratch(2, kernels_.rows * width);
        for (std::int64_t r = 0; r < p.rows; r += kernels_.rows) {
            kernels_.tile(p.ins, p.x->panel(r / kernels_.rows, p.ins), tile, width, c, width, false);
            if (bf16) kernels_.round(c, kernels_.rows * width);
            const std::int64_t rows = std::min<std::int64_t>(kernels_.rows, p.rows - r);
            for (std::int64_t i = 0; i < rows; ++i)
                std::copy_n(c + i * width, valid, p.out + (r + i) * p.outs + column);
        }
    };
    pool_.parallel_for(first_item.back(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const auto after = std::upper_bound(first_item.begin(), first_item.end(), item);
            const auto i = static_cast<std::size_t>(after - first_item.begin() - 1);
            one_tile(products[i], (item - first_item[i]) * width);
        }
    });
}

void Products::times_rows(const Panels& p, std::int64_t rows, std::int64_t count, const Tensor& table,
                          std::int64_t first, std::int64_t cols, float* out, bool add) {
    const std::int64_t width = kernels_.cols;
    pool_.parallel_for((cols + width - 1) / width, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            const std::int64_t column = t * width;
            const std::int64_t valid = std::min(width, cols - column);
            float* tile = thread_scratch(1, count * width);
            for (std::int64_t i = 0; i < count; ++i) {
                load_f32(table, (first + i) * cols + column, valid, tile + i * width);
                std::fill_n(tile + i * width + valid, width - valid, 0.0f);
            }
            float* c = thread_scratch(2, kernels_.rows * width);
            for (std::int64_t r = 0; r < rows; r += kernels_.rows) {
                const std::int64_t here = std::min<std::int64_t>(kernels_.rows, rows - r);
                if (add) {
                    for (std::int64_t i = 0; i < here; ++i)
                        std::copy_n(out + (r + i) * cols + column, valid, c + i * width);
                }
                kernels_.tile(count, p.panel(r / kernels_.rows, count), tile, width, c, width, add);
                for (std::int64_t i = 0; i < here; ++i)
                    std::copy_n(c + i * width, valid, out + (r + i) * cols + column);
            }
        }
    });
}

void rotate_row(float* x, std::int64_t cols, std::int64_t head_dim, const float* frequencies,
                std::int32_t position, bool bf16) {
    const std::int64_t half = head_dim / 2;
    float* c = thread_scratch(0, head_dim);
    float* s = c + half;
    for (std::int64_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(position) * frequencies[d];
        c[d] = rounded(std::cos(angle), bf16);
        s[d] = rounded(std::sin(angle), bf16);
    }
    for (float* head = x; head < x + cols; head += head_dim) {
        for (std::int64_t d = 0; d < half; ++d) {
            const float a = head[d];
            const float b = head[d + half];
            head[d] = rounded(rounded(a * c[d], bf16) + rounded(-b * s[d], bf16), bf16);
            head[d + half] = rounded(rounded(b * c[d], bf16) + rounded(a * s[d], bf16), bf16);
        }
    }
}

}  // namespace dgemma::backend::cpu
