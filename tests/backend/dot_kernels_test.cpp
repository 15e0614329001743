// The dot-product kernels against sums in double over the very operands they are given: what they multiply is
// theirs to round, how they sum is not.
#include "backend/cpu/dot_kernels.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/plain_kernels.h"
#include "backend/cpu/weight_rows.h"
#include "backend/random_data.h"

namespace dgemma::testing {
namespace {

using namespace backend::cpu;

// A random affine weight [matrices, outs, ins] in `tiles` layout, and its values.
struct AffineWeight {
    AffineWeight(RandomData& data, Encoding encoding, std::int64_t matrices, std::int64_t outs,
                 std::int64_t ins) {
        const std::int64_t tiles = matrices * ((outs + 31) / 32), groups = ins / 32;
        const int levels = encoding == Encoding::affine4 ? 16 : 256;
        codes.resize(
            static_cast<std::size_t>(tiles * 32 * ins * (encoding == Encoding::affine4 ? 4 : 8) / 8));
        scales.resize(static_cast<std::size_t>(tiles * 32 * groups));
        biases.resize(scales.size());
        const std::vector<std::int32_t> random = data.ints(static_cast<std::int64_t>(codes.size()), 256);
        for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(random[i]);
        const std::vector<float> s =
            data.floats(static_cast<std::int64_t>(scales.size()), 0.1f / static_cast<float>(levels),
                        0.3f / static_cast<float>(levels));
        for (std::size_t i = 0; i < scales.size(); ++i) {
            scales[i] = f32_to_bf16(s[i]);
            biases[i] = f32_to_bf16(-s[i] * static_cast<float>(levels) / 2);
        }
        const Shape shape = matrices == 1 ? Shape{outs, ins} : Shape{matrices, outs, ins};
        view = {.shape = shape,
                .encoding = encoding,
                .layout = Layout::tiles,
                .codes = reinterpret_cast<const std::byte*>(codes.data()),
                .scales = reinterpret_cast<const std::byte*>(scales.data()),
                .biases = reinterpret_cast<const std::byte*>(biases.data())};
    }
    AffineWeight(const AffineWeight&) = delete;
    AffineWeight& operator=(const AffineWeight&) = delete;
    std::vector<std::uint8_t> codes;
    std::vector<std::uint16_t> scales, biases;
    WeightView view;
};

class Dots : public ::testing::Test {
  protected:
    void SetUp() override {
        dots = choose_dot_kernels(choose_plain_kernels().name);
        if (dots == nullptr) GTEST_SKIP() << "skipped: this machine has no dot products of bf16 and bytes";
    }
    const DotKernels* dots = nullptr;
    RandomData data{23};
};

TEST_F(Dots, Bf16PanelsOfEveryHeight) {
    for (const std::int64_t k : {64, 192, 704, 2112, 2816, 34}) {
        const std::vector<float> w = data.floats(32 * k);
        const HostTensor weight(w, Dtype::bf16, {32, k}, true);
        for (int rows = 1; rows <= kMaxBf16Rows; ++rows) {
            const int missing = rows % 5;
            const std::vector<float> x = data.floats(rows * k);
            std::vector<std::uint32_t> a(static_cast<std::size_t>(rows * k / 2)),
                tile(static_cast<std::size_t>(16 * k), 0xFFFFFFFFu);
            for (int r = 0; r < rows; ++r) dots->round_row(x.data() + r * k, k, rows, a.data() + r);
            dots->interleave_rows(weight.view.data, k, missing, k / 2, tile.data());
            std::vector<float> c(static_cast<std::size_t>(rows * 40), std::nanf(""));
            dots->bf16(rows, k / 2, a.data(), tile.data(), c.data(), 40, false);
            for (int r = 0; r < rows; ++r) {
                for (int j = 0; j < 32; ++j) {
                    double want = 0, size = 0;
                    for (std::int64_t i = 0; i < k && j < 32 - missing; ++i) {
                        const double product =
                            static_cast<double>(round_bf16(x[static_cast<std::size_t>(r * k + i)])) *
                            round_bf16(w[static_cast<std::size_t>(j * k + i)]);
                        want += product;
                        size += std::abs(product);
                    }
                    ASSERT_NEAR(c[static_cast<std::size_t>(r * 40 + j)], want, 2e-6 * size + 1e-30)
                        << k << " " << rows << " " << j;
                }
                for (int j = 32; j < 40; ++j)
                    ASSERT_TRUE(std::isnan(c[static_cast<std::size_t>(r * 40 + j)]));
            }
            std::vector<float> twice = c;
            dots->bf16(rows, k / 2, a.data(), tile.data(), twice.data(), 40, true);
            for (int j = 0; j < 32; ++j)
                ASSERT_NEAR(twice[static_cast<std::size_t>(j)], 2 * c[static_cast<std::size_t>(j)],
                            1e-4 * std::abs(c[static_cast<std::size_t>(j)]) + 1e-4);
        }
    }
}

// A row's bits are the same in a panel of any height.
TEST_F(Dots, ARowDoesNotSeeItsPanel) {
    constexpr std::int64_t k = 704;
    const AffineWeight weight(data, Encoding::affine8, 1, 32, k);
    const std::vector<float> x = data.floats(12 * k);
    const std::vector<float> w = data.floats(32 * k);
    const HostTensor plain(w, Dtype::bf16, {32, k});
    std::vector<std::uint32_t> tile(static_cast<std::size_t>(16 * k));
    dots->interleave_rows(plain.view.data, k, 0, k / 2, tile.data());
    std::vector<std::vector<float>> bf16_alone, bytes_alone;
    for (int rows = 1; rows <= kMaxBf16Rows; ++rows) {
        std::vector<std::uint32_t> a(static_cast<std::size_t>(rows * k / 2));
        for (int r = 0; r < rows; ++r) dots->round_row(x.data() + r * k, k, rows, a.data() + r);
        std::vector<float> c(static_cast<std::size_t>(rows * 32));
        dots->bf16(rows, k / 2, a.data(), tile.data(), c.data(), 32, false);
        bf16_alone.emplace_back(c.begin(), c.begin() + 32);
        EXPECT_EQ(bf16_alone.back(), bf16_alone.front()) << rows;
        if (rows > kMaxByteRows) continue;
        std::vector<std::int32_t> codes(static_cast<std::size_t>(rows * k / 4));
        std::vector<float> scales(static_cast<std::size_t>(rows * 3)),
            sums(static_cast<std::size_t>(rows * k / 32));
        for (int r = 0; r < rows; ++r)
            dots->quantise_row(x.data() + r * k, k, rows, codes.data() + r, scales.data() + r,
                               sums.data() + r);
        dots->affine8(rows, k, {codes.data(), scales.data(), sums.data()}, weight.codes.data(),
                      weight.scales.data(), weight.biases.data(), c.data(), 32);
        bytes_alone.emplace_back(c.begin(), c.begin() + 32);
        EXPECT_EQ(bytes_alone.back(), bytes_alone.front()) << rows;
    }
}

TEST_F(Dots, BytesAreRoundedToTheNearestAndSummedExactly) {
    for (const std::int64_t k : {64, 192, 704, 2112, 2816}) {
        for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
            const AffineWeight weight(data, encoding, 1, 32, k);
            for (int rows = 1; rows <= kMaxByteRows; ++rows) {
                std::vector<float> x = data.floats(rows * k);
                if (rows == 2) std::fill(x.begin(), x.begin() + k, 0.0f);  // a row of zeros has no scale
                std::vector<std::int32_t> codes(static_cast<std::size_t>(rows * k / 4), -1);
                const std::int64_t blocks = (k + kByteBlock - 1) / kByteBlock;
                std::vector<float> scales(static_cast<std::size_t>(rows * blocks), std::nanf("")),
                    sums(static_cast<std::size_t>(rows * k / 32), std::nanf(""));
                for (int r = 0; r < rows; ++r)
                    dots->quantise_row(x.data() + r * k, k, rows, codes.data() + r, scales.data() + r,
                                       sums.data() + r);
                std::vector<std::uint8_t> unpacked(static_cast<std::size_t>(32 * k), 0xFF);
                if (encoding == Encoding::affine4) {
                    dots->unpack4(k, weight.codes.data(), unpacked.data());
                } else {
                    unpacked = weight.codes;
                }
                std::vector<float> c(static_cast<std::size_t>(rows * 32), std::nanf(""));
                dots->affine8(rows, k, {codes.data(), scales.data(), sums.data()}, unpacked.data(),
                              weight.scales.data(), weight.biases.data(), c.data(), 32);
                std::vector<float> w(static_cast<std::size_t>(k));
                for (int j = 0; j < 32; ++j) {
                    load_row(weight.view, j, w.data());
                    for (int r = 0; r < rows; ++r) {
                        double want = 0, size = 0;
                        for (std::int64_t i = 0; i < k; ++i) {
                            const std::int32_t quad = codes[static_cast<std::size_t>(i / 4 * rows + r)];
                            const auto code = static_cast<std::int8_t>(
                                static_cast<std::uint32_t>(quad) >> (8 * (i % 4)) & 255u);
                            const double value = static_cast<double>(code) *
                                                 scales[static_cast<std::size_t>(i / kByteBlock * rows + r)];
                            ASSERT_LE(std::abs(value - x[static_cast<std::size_t>(r * k + i)]),
                                      0.5001 * scales[static_cast<std::size_t>(i / kByteBlock * rows + r)]);
                            want += value * w[static_cast<std::size_t>(i)];
                            size += std::abs(value) * (std::abs(w[static_cast<std::size_t>(i)]) +
                                                       0.2);  // codes and bias may cancel in w
                        }
                        ASSERT_NEAR(c[static_cast<std::size_t>(r * 32 + j)], want, 2e-6 * size + 1e-30)
                            << k << " " << rows << " " << j;
                    }
                }
            }
        }
    }
}

TEST_F(Dots, ColumnsInterleave) {
    const std::vector<float> w = data.floats(20 * 96);
    const HostTensor table(w, Dtype::bf16, {20, 96}, true);
    std::vector<std::uint32_t> tile(10 * 32);
    dots->interleave_columns(table.view.data + 64 * 2, 96, 10, tile.data());
    for (std::size_t i = 0; i < 10; ++i) {
        for (std::size_t c = 0; c < 32; ++c) {
            EXPECT_EQ(tile[i * 32 + c] & 0xFFFFu, f32_to_bf16(w[2 * i * 96 + 64 + c]));
            EXPECT_EQ(tile[i * 32 + c] >> 16, f32_to_bf16(w[(2 * i + 1) * 96 + 64 + c]));
        }
    }
}

// Whole operations in mixed precision stay within what rounding their operands costs: bf16 has 2^-9 of a
// value, a byte half a 127th of the largest of its block (about three sigma of the random rows here).
TEST_F(Dots, MixedOperationsStayNearTheOracle) {
    auto mixed = backend::make_plain_backend(backend::Precision::mixed, 2);
    auto reference = backend::make_reference_backend(backend::Precision::f32);
    const auto compare = [&](const char* what, double bound, auto f) {
        EXPECT_LE(relative_error(f(*mixed), f(*reference)), bound) << what;
    };
    for (const std::int64_t rows : {1, 7, 29}) {
        const std::int64_t ins = 256, outs = 75;
        const std::vector<float> x = data.floats(rows * ins);
        const HostTensor bf16(data.floats(outs * ins), Dtype::bf16, {outs, ins});
        const AffineWeight eight(data, Encoding::affine8, 1, outs, ins),
            four(data, Encoding::affine4, 1, outs, ins);
        const auto project = [&](backend::Backend& b, std::unique_ptr<backend::Weight> w) {
            const DeviceMat in(b, rows, ins, x), out(b, rows, outs);
            b.project(in.mat, *w, out.mat);
            return out.values();
        };
        compare("bf16", 3e-3,
                [&](backend::Backend& b) { return project(b, DeviceMat::take(b.prepare(bf16.view))); });
        compare("affine8", 1.2e-2, [&](backend::Backend& b) {
            return project(b, DeviceMat::take(b.prepare_encoded(eight.view)));
        });
        compare("affine4", 1.2e-2, [&](backend::Backend& b) {
            return project(b, DeviceMat::take(b.prepare_encoded(four.view)));
        });
        const AffineWeight gate_up(data, Encoding::affine4, 6, 128, ins),
            down(data, Encoding::affine8, 6, ins, 64);
        std::vector<std::int32_t> ids;
        for (std::int64_t r = 0; r < rows; ++r)
            ids.insert(ids.end(), {static_cast<std::int32_t>(r % 3), static_cast<std::int32_t>(3 + r % 3)});
        std::vector<float> weights(ids.size(), 0.5f);
        compare("experts", 3e-2, [&](backend::Backend& b) {
            const DeviceMat in(b, rows, ins, x), out(b, rows, ins);
            b.experts(in.mat, {{ids.data(), rows, 2}, {weights.data(), rows, 2}, {}},
                      *DeviceMat::take(b.prepare_encoded(gate_up.view)),
                      *DeviceMat::take(b.prepare_encoded(down.view)), out.mat);
            return out.values();
        });
        const HostTensor table(data.floats(2050 * 96, 0.3f), Dtype::bf16, {2050, 96});
        const std::vector<float> h = data.floats(rows * 96);
        compare("head and soft embedding", 5e-3, [&](backend::Backend& b) {
            const DeviceMat in(b, rows, 96, h), out(b, rows, 96);
            const auto w = DeviceMat::take(b.prepare(table.view));
            auto logits = DeviceMat::take(b.make_logits(rows, 2050));
            const backend::HeadArgs::Canvas canvas{0, rows, 0.8f, logits.get()};
            b.head({in.mat, w.get(), 30.0f, std::span(&canvas, 1)});
            b.soft_embed(*logits, *w, 9.8f, out.mat);
            return out.values();
        });
    }
}

}  // namespace
}  // namespace dgemma::testing
