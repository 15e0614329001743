// The dot-product kernels against sums in double over the very operands they are given: what they multiply is
// theirs to round, how they sum is not.
#include "backend/cpu/dot_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
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

// Each table that this machine can run, by its instruction set's name.
class Dots : public ::testing::TestWithParam<std::string> {
  protected:
    const DotKernels* dots = instruction_set_named(GetParam())->dots;
    RandomData data{23};
};

// Rows as a panel of bf16, in an order that is the table's own.
struct Bf16Rows {
    Bf16Rows(const DotKernels& dots, const float* x, std::int64_t rows, std::int64_t k)
        : words(static_cast<std::size_t>(rows * k / 2 * dots.pair_words), 0xFFFFFFFFu) {
        std::vector<const float*> each;
        for (std::int64_t r = 0; r < rows; ++r) each.push_back(x + r * k);
        dots.round_rows(each.data(), k, static_cast<int>(rows), words.data());
    }
    std::vector<std::uint32_t> words;
};

// Rows as a panel of bytes.
struct ByteRows {
    ByteRows(const DotKernels& dots, const float* x, std::int64_t rows, std::int64_t k)
        : codes(static_cast<std::size_t>(rows * k / 4), -1),
          scales(static_cast<std::size_t>(rows * ((k + kByteBlock - 1) / kByteBlock)), std::nanf("")),
          sums(static_cast<std::size_t>(rows * k / 32), std::nanf("")) {
        for (std::int64_t r = 0; r < rows; ++r)
            dots.quantise_row(x + r * k, k, rows, r, codes.data(), scales.data(), sums.data());
    }
    [[nodiscard]] BytePanel panel() const { return {codes.data(), scales.data(), sums.data()}; }
    std::vector<std::int32_t> codes;
    std::vector<float> scales, sums;
};

// [rows][32] of the first tile of a weight.
std::vector<float> product(const DotKernels& dots, const ByteRows& x, std::int64_t rows, std::int64_t k,
                           const AffineWeight& weight) {
    std::vector<float> c(static_cast<std::size_t>(rows * 32), std::nanf(""));
    if (weight.view.encoding == Encoding::affine4) {
        std::vector<std::uint8_t> unpacked(static_cast<std::size_t>(32 * k), 0xFF);
        dots.unpack4(k, weight.codes.data(), unpacked.data());
        dots.affine4(static_cast<int>(rows), k, x.panel(), unpacked.data(), weight.scales.data(),
                     weight.biases.data(), c.data(), 32);
    } else {
        dots.affine8(static_cast<int>(rows), k, x.panel(), weight.codes.data(), weight.scales.data(),
                     weight.biases.data(), c.data(), 32);
    }
    return c;
}

TEST_P(Dots, Bf16PanelsOfEveryHeight) {
    for (const std::int64_t k : {64, 192, 704, 2112, 2816, 34}) {
        const std::vector<float> w = data.floats(32 * k);
        const HostTensor weight(w, Dtype::bf16, {32, k}, true);
        for (int rows = 1; rows <= dots->bf16_rows; ++rows) {
            const int missing = rows % 5;
            const std::vector<float> x = data.floats(rows * k);
            const Bf16Rows a(*dots, x.data(), rows, k);
            std::vector<std::uint32_t> tile(static_cast<std::size_t>(16 * k), 0xFFFFFFFFu);
            dots->interleave_rows(weight.view.data, k, missing, k / 2, tile.data());
            std::vector<float> c(static_cast<std::size_t>(rows * 40), std::nanf(""));
            dots->bf16(rows, k / 2, a.words.data(), tile.data(), c.data(), 40, false);
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
            dots->bf16(rows, k / 2, a.words.data(), tile.data(), twice.data(), 40, true);
            for (int r = 0; r < rows; ++r) {
                for (std::size_t i = static_cast<std::size_t>(r) * 40, j = 0; j < 32; ++j, ++i)
                    ASSERT_NEAR(twice[i], 2 * c[i], 1e-4 * std::abs(c[i]) + 1e-4);
            }
        }
    }
}

// A row's bits are the same in a panel of any height, at any place in it, and beside rows that are not
// numbers.
TEST_P(Dots, ARowDoesNotSeeItsPanel) {
    constexpr std::int64_t k = 738;  // an odd number of pairs
    const std::vector<float> w = data.floats(32 * k);
    const HostTensor plain(w, Dtype::bf16, {32, k});
    std::vector<std::uint32_t> tile(static_cast<std::size_t>(16 * k));
    dots->interleave_rows(plain.view.data, k, 0, k / 2, tile.data());
    const std::vector<float> row = data.floats(k);
    std::vector<float> alone(32);
    dots->bf16(1, k / 2, Bf16Rows(*dots, row.data(), 1, k).words.data(), tile.data(), alone.data(), 32,
               false);
    for (int rows = 2; rows <= dots->bf16_rows; ++rows) {
        for (int r = 0; r < rows; ++r) {
            std::vector<float> x = data.floats(rows * k);
            x[static_cast<std::size_t>((r + 1) % rows * k + 5)] = std::nanf("");
            std::copy(row.begin(), row.end(), x.begin() + r * k);
            std::vector<float> c(static_cast<std::size_t>(rows * 32));
            dots->bf16(rows, k / 2, Bf16Rows(*dots, x.data(), rows, k).words.data(), tile.data(), c.data(),
                       32, false);
            EXPECT_TRUE(std::equal(alone.begin(), alone.end(), c.begin() + r * 32)) << rows << " " << r;
            for (int j = 0; j < 32; ++j)
                EXPECT_TRUE(std::isnan(c[static_cast<std::size_t>((r + 1) % rows * 32 + j)]));
        }
    }
}

TEST_P(Dots, ARowOfBytesDoesNotSeeItsPanel) {
    constexpr std::int64_t k = 704;
    for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
        const AffineWeight weight(data, encoding, 1, 32, k);
        const std::vector<float> row = data.floats(k);
        const std::vector<float> alone = product(*dots, ByteRows(*dots, row.data(), 1, k), 1, k, weight);
        for (int rows = 2; rows <= dots->byte_rows; ++rows) {
            for (int r = 0; r < rows; ++r) {
                std::vector<float> x = data.floats(rows * k);
                x[static_cast<std::size_t>((r + 1) % rows * k + 300)] = std::nanf("");
                std::copy(row.begin(), row.end(), x.begin() + r * k);
                const std::vector<float> c =
                    product(*dots, ByteRows(*dots, x.data(), rows, k), rows, k, weight);
                EXPECT_TRUE(std::equal(alone.begin(), alone.end(), c.begin() + r * 32)) << rows << " " << r;
                for (int j = 0; j < 32; ++j)
                    EXPECT_TRUE(std::isnan(c[static_cast<std::size_t>((r + 1) % rows * 32 + j)]));
            }
        }
    }
}

TEST_P(Dots, BytesAreRoundedToTheNearest) {
    for (const std::int64_t k : {64, 192, 704, 2112, 2816}) {
        for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
            const AffineWeight weight(data, encoding, 1, 32, k);
            for (int rows = 1; rows <= dots->byte_rows; ++rows) {
                std::vector<float> x = data.floats(rows * k);
                if (rows == 2) std::fill(x.begin(), x.begin() + k, 0.0f);  // a row of zeros has no scale
                const ByteRows bytes(*dots, x.data(), rows, k);
                const std::vector<float> c = product(*dots, bytes, rows, k, weight);
                std::vector<double> values(x.size());
                for (int r = 0; r < rows; ++r) {
                    for (std::int64_t begin = 0; begin < k; begin += kByteBlock) {
                        const std::int64_t end = std::min<std::int64_t>(k, begin + kByteBlock);
                        float largest = 0;
                        for (std::int64_t i = begin; i < end; ++i)
                            largest = std::max(largest, std::abs(x[static_cast<std::size_t>(r * k + i)]));
                        const float scale =
                            bytes.scales[static_cast<std::size_t>(begin / kByteBlock * rows + r)];
                        ASSERT_EQ(scale, largest / 127.0f);
                        float sum = 0;
                        for (std::int64_t i = begin; i < end; ++i) {
                            const auto at = static_cast<std::size_t>(r * k + i);
                            const float code =
                                largest > 0 ? std::nearbyintf(x[at] * (127.0f / largest)) : 0.0f;
                            values[at] = static_cast<double>(code) * scale;
                            sum = i % 32 == 0 ? code : sum + code;
                            if (i % 32 == 31) {
                                ASSERT_EQ(bytes.sums[static_cast<std::size_t>(i / 32 * rows + r)], sum);
                            }
                        }
                    }
                }
                std::vector<float> w(static_cast<std::size_t>(k));
                for (int j = 0; j < 32; ++j) {
                    load_row(weight.view, j, w.data());
                    for (int r = 0; r < rows; ++r) {
                        double want = 0, size = 0;
                        for (std::int64_t i = 0; i < k; ++i) {
                            const double value = values[static_cast<std::size_t>(r * k + i)];
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

// Whole numbers throughout, as large as they get: nothing saturates, nothing is lost.
// What damaged weights make of a row: it says so and nothing else is harmed; next to nothing is nothing.
TEST_P(Dots, RowsThatHaveNoCodes) {
    constexpr std::int64_t k = 512, rows = 2;
    const AffineWeight w(data, Encoding::affine8, 1, 32, k);
    for (const float odd : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 3e-37f, -1e-41f}) {
        std::vector<float> x = data.floats(rows * k);
        for (std::int64_t c = 0; c < k; ++c) {
            float& v = x[static_cast<std::size_t>(k + c)];
            v = std::isfinite(odd) ? odd : c == 300 ? odd : v;
        }
        const std::vector<float> out = product(*dots, ByteRows(*dots, x.data(), rows, k), rows, k, w);
        for (std::int64_t i = 0; i < rows * 32; ++i) {
            const float value = out[static_cast<std::size_t>(i)];
            if (i / 32 != 1) {
                EXPECT_TRUE(std::isfinite(value)) << odd << " at " << i;
            } else if (std::isfinite(odd)) {
                EXPECT_LE(std::abs(value), 1e-30f) << odd;
            } else {
                EXPECT_FALSE(std::isfinite(value)) << odd;
            }
        }
    }
}

TEST_P(Dots, TheLargestCodesSumExactly) {
    constexpr std::int64_t k = kByteBlock;
    for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
        AffineWeight weight(data, encoding, 1, 32, k);
        std::fill(weight.scales.begin(), weight.scales.end(), f32_to_bf16(1.0f));
        std::fill(weight.biases.begin(), weight.biases.end(), f32_to_bf16(0.0f));
        for (const int fill : {0, 1, 2}) {  // as drawn; all ones; all zeros
            if (fill > 0) std::fill(weight.codes.begin(), weight.codes.end(), fill == 1 ? 0xFF : 0x00);
            for (int rows = 1; rows <= dots->byte_rows; ++rows) {
                std::vector<float> x(static_cast<std::size_t>(rows * k));
                const std::vector<std::int32_t> signs = data.ints(rows * k, 2);
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const bool one_sign = i / static_cast<std::size_t>(k) < 2;  // rows 0 and 1
                    x[i] =
                        (one_sign ? i / static_cast<std::size_t>(k) == 0 : signs[i] == 0) ? 127.0f : -127.0f;
                }
                const std::vector<float> c =
                    product(*dots, ByteRows(*dots, x.data(), rows, k), rows, k, weight);
                std::vector<float> w(static_cast<std::size_t>(k));
                for (int j = 0; j < 32; ++j) {
                    load_row(weight.view, j, w.data());
                    for (int r = 0; r < rows; ++r) {
                        double want = 0;
                        for (std::size_t i = 0; i < w.size(); ++i)
                            want += static_cast<double>(w[i]) * x[static_cast<std::size_t>(r * k) + i];
                        ASSERT_EQ(c[static_cast<std::size_t>(r * 32 + j)], want) << fill << " " << rows;
                    }
                }
            }
        }
    }
}

// The bits of every table on every machine are those that were written down here. Numbers without a library's
// distribution in them, so that they are the same everywhere.
TEST_P(Dots, EveryMachineGetsTheseBits) {
    constexpr std::int64_t k = 704, rows = 5;
    std::uint64_t state = 1;
    const auto next = [&state] { return state = state * 6364136223846793005u + 1442695040888963407u; };
    const auto number = [&] {
        return (static_cast<float>(next() >> 40) - 8388608.0f) / 8388608.0f *
               static_cast<float>(1 + (next() >> 61));
    };
    const auto hash = [](const std::vector<float>& values) {
        std::uint64_t h = 14695981039346656037u;
        for (const float v : values) h = (h ^ std::bit_cast<std::uint32_t>(v)) * 1099511628211u;
        return h;
    };
    std::vector<float> x(static_cast<std::size_t>(rows * k)), w(static_cast<std::size_t>(32 * k));
    for (float& v : x) v = number();
    for (float& v : w) v = number();
    const HostTensor plain(w, Dtype::bf16, {32, k});
    std::vector<std::uint32_t> tile(static_cast<std::size_t>(16 * k));
    dots->interleave_rows(plain.view.data, k, 0, k / 2, tile.data());
    std::vector<float> c(static_cast<std::size_t>(rows * 32));
    dots->bf16(rows, k / 2, Bf16Rows(*dots, x.data(), rows, k).words.data(), tile.data(), c.data(), 32,
               false);
    if (GetParam() != "neon_i8mm_bf16") {  // whose instruction rounds pairs
        EXPECT_EQ(hash(c), 16225464791728267494u) << "bf16";
    }
    for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
        AffineWeight weight(data, encoding, 1, 32, k);
        for (std::uint8_t& code : weight.codes) code = static_cast<std::uint8_t>(next() >> 56);
        for (std::size_t i = 0; i < weight.scales.size(); ++i) {
            weight.scales[i] = f32_to_bf16(number() / 100);
            weight.biases[i] = f32_to_bf16(number());
        }
        EXPECT_EQ(hash(product(*dots, ByteRows(*dots, x.data(), rows, k), rows, k, weight)),
                  encoding == Encoding::affine8 ? 12141483663061951424u : 1206740177507500471u)
            << name_of(encoding);
    }
}

TEST_P(Dots, PeaksAreMeasured) {
    EXPECT_GT(dots->burn_bf16(1000), 0);
    EXPECT_GT(dots->burn_bytes(1000), 0);
}

TEST_P(Dots, ColumnsInterleave) {
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
TEST_P(Dots, MixedOperationsStayNearTheOracle) {
    auto mixed = backend::make_plain_backend(backend::Precision::mixed, 2, GetParam());
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
            b.soft_embed(std::array{logits.get()}, *w, 9.8f, out.mat);
            return out.values();
        });
    }
}

std::vector<std::string> sets_with_dots() {
    std::vector<std::string> out;
    for (const InstructionSet& set : instruction_sets()) {
        if (set.dots != nullptr) out.emplace_back(set.name);
    }
    return out;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Dots);
INSTANTIATE_TEST_SUITE_P(Tables, Dots, ::testing::ValuesIn(sets_with_dots()),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace dgemma::testing
