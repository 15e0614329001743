// What the operations of the plain backend share: threads, kernels, and working memory.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/plain_kernels.h"
#include "backend/cpu/plain_products.h"
#include "backend/cpu/scratch.h"
#include "base/thread_pool.h"

namespace dgemma::backend::cpu {

// x^(-1/2) to the bits of powf, which the reference calls. Where a root and a division in double, several
// times faster, lie near the middle of two floats, powf may have rounded the other way, and is asked.
inline float inverse_root(float x) {
    if (!(x > 0) || !std::isfinite(x)) return std::pow(x, -0.5f);
    const double root = 1.0 / std::sqrt(static_cast<double>(x));
    std::uint64_t bits;
    std::memcpy(&bits, &root, 8);
    constexpr std::uint64_t below = (std::uint64_t{1} << 29) - 1;  // what a float's mantissa has no place for
    constexpr std::uint64_t middle = std::uint64_t{1} << 28, near = middle >> 6;
    if ((bits & below) - (middle - near) < 2 * near) return std::pow(x, -0.5f);
    return static_cast<float>(root);
}

struct PlainMachine {
    static constexpr std::int64_t kBlockRows = 96;  // of a block, at most
    static constexpr std::int64_t kGroup = 8;

    PlainMachine(bool round, int threads, bool pin, const KernelTables& tables)
        : bf16(round),
          pool(threads, pin),
          kernels(*tables.plain),
          products(tables, pool),
          exact_products({tables.plain, nullptr}, pool) {}

    // f(r) for every row, by all threads.
    template <class F>
    void for_rows(std::int64_t rows, F f) {
        pool.parallel_for(rows, kGroup, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) f(r);
        });
    }
    // f(first, count) for groups of at most kGroup rows: for what is faster for several rows together.
    template <class F>
    void for_groups(std::int64_t rows, F f) {
        pool.parallel_for(rows, kGroup, [&](std::int64_t begin, std::int64_t end) { f(begin, end - begin); });
    }

    // f(first, count) for blocks of rows, each on one thread: as many rows as keep what is done with them in
    // a core's second cache.
    template <class F>
    void for_blocks(std::int64_t rows, F f) {
        const std::int64_t each = (rows + pool.threads() - 1) / pool.threads();
        const std::int64_t blocks = pool.threads() * ((each + kBlockRows - 1) / kBlockRows);
        pool.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t b = begin; b < end; ++b) {
                const std::int64_t first = b * rows / blocks;
                f(first, (b + 1) * rows / blocks - first);
            }
        });
    }

    // What RMSNorm multiplies each of a group's rows [n] by (contract/model.md 3).
    [[nodiscard]] std::array<float, kGroup> norm_factors(const float* x, std::int64_t count, std::int64_t n,
                                                         float eps) const {
        std::array<double, kGroup> sums;
        std::array<float, kGroup> factors;
        kernels.sum_squares(x, n, count, n, sums.data());
        for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r)
            factors[r] = inverse_root(static_cast<float>(sums[r] / static_cast<double>(n)) + eps);
        return factors;
    }
    // RMSNorm of a group's rows; w null: without a weight. out may be x.
    void norm_group(const float* x, const float* w, std::int64_t count, std::int64_t n, float eps,
                    float* out) const {
        const auto factors = norm_factors(x, count, n, eps);
        for (std::int64_t r = 0; r < count; ++r)
            kernels.scale(x + r * n, w, n, factors[static_cast<std::size_t>(r)], bf16, out + r * n);
    }
    // out = rb(b + norm(x; w)) of a group's rows. out may be either.
    void norm_add_group(const float* x, const float* w, std::int64_t count, std::int64_t n, float eps,
                        const float* b, float* out) const {
        const auto factors = norm_factors(x, count, n, eps);
        for (std::int64_t r = 0; r < count; ++r)
            kernels.scale_add(x + r * n, w, n, factors[static_cast<std::size_t>(r)], bf16, b + r * n,
                              out + r * n);
    }

    const bool bf16;  // results are rounded to it
    ThreadPool pool;
    const PlainKernels& kernels;
    Products products;
    Products exact_products;         // without dot products
    std::array<Scratch, 2> scratch;  // of the operation that runs; one runs at a time
    PassFacts facts;
};

}  // namespace dgemma::backend::cpu
