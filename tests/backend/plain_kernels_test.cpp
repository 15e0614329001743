// The kernels of rows against the same written out one number at a time: outputs poisoned, sizes that no
// vector divides, nothing written behind the end.
#include "backend/cpu/plain_kernels.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/plain_machine.h"
#include "backend/cpu/rows.h"
#include "backend/random_data.h"

namespace dgemma::testing {
namespace {

using namespace backend::cpu;

class RowKernels : public ::testing::TestWithParam<std::string> {
  protected:
    static constexpr std::int64_t kSizes[] = {1, 3, 8, 15, 16, 33, 100, 256};
    const PlainKernels& kernels = *instruction_set_named(GetParam())->plain;
    RandomData data{31};
    // n poisoned numbers and one more, which stays.
    static std::vector<float> poisoned(std::int64_t n) {
        std::vector<float> out(static_cast<std::size_t>(n + 1), std::nanf(""));
        out.back() = 77.0f;
        return out;
    }
};

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float alone(float x) {
    const volatile float kept = x;  // no compiler fuses it with what comes next
    return kept;
}

TEST_P(RowKernels, PanelsArePackedWhole) {
    for (const std::int64_t k : kSizes) {
        for (int count = 1; count <= kernels.rows; ++count) {
            const std::vector<float> x = data.floats(count * k);
            std::vector<const float*> rows(static_cast<std::size_t>(count));
            for (int r = 0; r < count; ++r) rows[static_cast<std::size_t>(r)] = x.data() + r * k;
            std::vector<float> panel = poisoned(k * kernels.rows);
            kernels.pack(rows.data(), k, count, panel.data());
            for (std::int64_t i = 0; i < k; ++i) {
                for (int r = 0; r < kernels.rows; ++r)
                    ASSERT_EQ(panel[static_cast<std::size_t>(i * kernels.rows + r)],
                              r < count ? x[static_cast<std::size_t>(r * k + i)] : 0.0f)
                        << k << " " << count << " " << i << " " << r;
            }
            ASSERT_EQ(panel.back(), 77.0f);
        }
    }
}

// Squares of floats are exact in double, so eight lanes leave nothing open.
TEST_P(RowKernels, SquaresAreSummedInEightLanes) {
    for (const std::int64_t n : kSizes) {
        for (std::int64_t rows = 1; rows <= 8; ++rows) {
            const std::int64_t stride = n + 5;
            const std::vector<float> x = data.floats(rows * stride);
            std::vector<double> sums(static_cast<std::size_t>(rows + 1), -1);
            kernels.sum_squares(x.data(), stride, rows, n, sums.data());
            for (std::int64_t r = 0; r < rows; ++r) {
                double lanes[8] = {};
                for (std::int64_t i = 0; i < n; ++i) {
                    const double v = x[static_cast<std::size_t>(r * stride + i)];
                    lanes[i % 8] += v * v;
                }
                ASSERT_EQ(sums[static_cast<std::size_t>(r)],
                          ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                              ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])))
                    << n << " " << r << " of " << rows;
            }
            ASSERT_EQ(sums.back(), -1);
        }
    }
}

TEST_P(RowKernels, ScaledAndAdded) {
    for (const std::int64_t n : kSizes) {
        const std::vector<float> x = data.floats(n), w = data.floats(n), b = data.floats(n);
        for (const bool bf16 : {false, true}) {
            for (const bool weighted : {false, true}) {
                std::vector<float> out = poisoned(n);
                kernels.scale_add(x.data(), weighted ? w.data() : nullptr, n, 0.37f, bf16, b.data(),
                                  out.data());
                for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
                    const float scaled = weighted ? alone(alone(x[i] * 0.37f) * w[i]) : alone(x[i] * 0.37f);
                    ASSERT_EQ(out[i], rounded(b[i] + rounded(scaled, bf16), bf16)) << n << " " << i;
                }
                ASSERT_EQ(out.back(), 77.0f);
            }
        }
    }
}

TEST_P(RowKernels, HeadsTurn) {
    for (const std::int64_t half : kSizes) {
        const std::vector<float> x = data.floats(2 * half), c = data.floats(half), s = data.floats(half);
        for (const bool bf16 : {false, true}) {
            std::vector<float> head = x;
            head.push_back(77.0f);
            kernels.rotate(head.data(), half, c.data(), s.data(), bf16);
            for (std::size_t d = 0; d < static_cast<std::size_t>(half); ++d) {
                const float a = x[d], b = x[d + static_cast<std::size_t>(half)];
                ASSERT_EQ(head[d],
                          rounded(rounded(alone(a * c[d]), bf16) + rounded(alone(-b * s[d]), bf16), bf16));
                ASSERT_EQ(head[d + static_cast<std::size_t>(half)],
                          rounded(rounded(alone(b * c[d]), bf16) + rounded(alone(a * s[d]), bf16), bf16));
            }
            ASSERT_EQ(head.back(), 77.0f);
        }
    }
}

// The same as exp_sum and divide give, which are tested with the operations that use them.
TEST_P(RowKernels, SoftmaxIsExponentialsDivided) {
    for (const std::int64_t n : kSizes) {
        const std::vector<float> x = data.floats(n, 3);
        for (const bool bf16 : {false, true}) {
            std::vector<float> want = x, out = poisoned(n);
            kernels.exp_sum(want.data(), n, 2.5f);
            kernels.divide(want.data(), n, 7.0f, bf16);
            kernels.softmax(x.data(), n, 2.5f, 7.0f, bf16, out.data());
            for (std::size_t i = 0; i < want.size(); ++i) {
                ASSERT_EQ(out[i], want[i]) << n << " " << i;
                ASSERT_NEAR(out[i], std::exp(static_cast<double>(x[i]) - 2.5) / 7,
                            (bf16 ? 4e-3 : 1e-6) * out[i]);
            }
            ASSERT_EQ(out.back(), 77.0f);
        }
    }
}

TEST_P(RowKernels, ToBf16) {
    for (const std::int64_t n : kSizes) {
        std::vector<float> x = data.floats(n);
        x[0] = n % 2 == 0 ? std::nanf("") : -HUGE_VALF;
        std::vector<std::uint16_t> out(static_cast<std::size_t>(n + 1), 0x7777);
        kernels.to_bf16(x.data(), n, out.data());
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], f32_to_bf16(x[i])) << n << " " << i;
        ASSERT_EQ(out.back(), 0x7777);
    }
}

TEST_P(RowKernels, CappedLogitsAndTheirStatistics) {
    for (const std::int64_t n : kSizes) {
        const std::vector<float> x = data.floats(n, 40);
        std::vector<float> out = poisoned(n);
        const SliceStats stats = kernels.softcap(x.data(), n, 30.0f, 0.5f, out.data());
        double top = -HUGE_VAL, sum = 0, weighted = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            ASSERT_NEAR(out[i], 60 * std::tanh(static_cast<double>(x[i]) / 30), 1e-4) << n << " " << i;
            top = std::max<double>(top, out[i]);
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
            sum += std::exp(out[i] - top);
            weighted += std::exp(out[i] - top) * (out[i] - top);
        }
        EXPECT_EQ(stats.max, static_cast<float>(top));
        EXPECT_NEAR(stats.sum, sum, 1e-5 * sum);
        EXPECT_NEAR(stats.weighted, weighted, 1e-5 * std::abs(weighted) + 1e-6);
        EXPECT_TRUE(stats.finite);
        EXPECT_EQ(out.back(), 77.0f);
    }
}

std::vector<std::string> tables() {
    std::vector<std::string> out;
    for (const InstructionSet& set : instruction_sets()) out.emplace_back(set.name);
    return out;
}
INSTANTIATE_TEST_SUITE_P(Tables, RowKernels, ::testing::ValuesIn(tables()),
                         [](const auto& kind) { return kind.param; });

// Every hundred-thousandth float or so, those about the middle of two floats among them, and what has no
// root.
TEST(InverseRoot, IsPowf) {
    for (std::uint32_t i = 1; i < 0x7F800000u; i += 20011) {
        const auto x = std::bit_cast<float>(i);
        ASSERT_EQ(bits(inverse_root(x)), bits(std::pow(x, -0.5f))) << x;
    }
    // powf rounds these the other way than a division in double does, at least where they were found.
    for (const float x : {0x1.088p-140f, 0x1.388p-140f, 0x1.6c8p-140f})
        EXPECT_EQ(bits(inverse_root(x)), bits(std::pow(x, -0.5f)));
    for (const float x : {0.0f, -0.0f, HUGE_VALF, 1e-45f, 3.4e38f})
        EXPECT_EQ(bits(inverse_root(x)), bits(std::pow(x, -0.5f))) << x;
    EXPECT_TRUE(std::isnan(inverse_root(-1.0f)));
    EXPECT_TRUE(std::isnan(inverse_root(std::nanf(""))));
}

}  // namespace
}  // namespace dgemma::testing
