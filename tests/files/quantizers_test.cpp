#include "files/quantizers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "base/counter_rng.h"
#include "base/small_floats.h"
#include "files/pack_compare.h"

namespace dgemma::files {
namespace {

constexpr std::array<std::int64_t, 5> widths{64, 192, 704, 2112, 2816};
constexpr float kTiny = 0x1p-126f;

float uniform(std::uint32_t i, std::uint32_t key) {
    return (static_cast<float>(philox4x32({i, 0, 0, 0}, {key, 1})[0]) + 0.5f) * 0x1p-32f;
}

// What a weight's numbers may look like: value of element i.
struct Kind {
    const char* name;
    std::function<float(std::uint32_t)> value;
};

float normal(std::uint32_t i) {
    return std::sqrt(-2 * std::log(uniform(i, 5))) * std::cos(6.2831853f * uniform(i, 6));
}

std::vector<Kind> kinds() {
    return {
        {"normal", [](std::uint32_t i) { return round_bf16(0.02f * normal(i)); }},
        {"f32", [](std::uint32_t i) { return 0.3f * normal(i); }},
        {"outliers", [](std::uint32_t i) { return normal(i) * (i % 97 == 0 ? 50.0f : 0.01f); }},
        {"one sign", [](std::uint32_t i) { return 3 + uniform(i, 7); }},
        {"far from zero", [](std::uint32_t i) { return -1000 + 0.001f * normal(i); }},
        {"zeros", [](std::uint32_t) { return 0.0f; }},
        {"mostly zeros", [](std::uint32_t i) { return i % 41 == 0 ? -0.75f : 0.0f; }},
        {"constant", [](std::uint32_t) { return -0.3125f; }},
        {"huge", [](std::uint32_t i) { return kLargestWeight * (2 * uniform(i, 8) - 1); }},
        {"tiny", [](std::uint32_t i) { return 1e-38f * normal(i); }},
        {"subnormal", [](std::uint32_t i) { return 1e-44f * normal(i); }},
        {"all scales",
         [](std::uint32_t i) { return std::ldexp(normal(i), static_cast<int>(i * 7 % 200) - 120); }},
    };
}

std::vector<float> numbers(const Kind& kind, std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = kind.value(static_cast<std::uint32_t>(i));
    return out;
}

WeightView f32_view(const std::vector<float>& values, const Shape& shape) {
    return WeightView::of({reinterpret_cast<const std::byte*>(values.data()), Dtype::f32, shape});
}

OwnedWeight encode(const std::vector<float>& values, const WeightForm& form, int threads = 1,
                   const QuantizeKernels& kernels = choose_quantize_kernels()) {
    ThreadPool pool(threads);
    auto out = encode_weight("w", form, StoredRows(f32_view(values, form.shape)), pool, kernels);
    EXPECT_TRUE(out) << out.error().message;
    return std::move(out).value();
}

std::vector<float> decode(const WeightView& view) {
    std::vector<float> out(static_cast<std::size_t>(view.elements()), std::nanf(""));
    const std::int64_t cols = view.shape.back();
    decode_rows(view, 0, view.elements() / cols, out.data(), cols);
    return out;
}

std::string bytes_of(const OwnedWeight& w) {
    std::string out;
    for (const Buffer* part : {&w.codes, &w.scales, &w.biases, &w.globals})
        out.append(reinterpret_cast<const char*>(part->data()), part->size());
    return out;
}

const std::vector<WeightForm> forms_of(const Shape& shape) {
    return {{shape, Encoding::plain, Layout::rows, Dtype::f32},
            {shape, Encoding::plain, Layout::rows, Dtype::bf16},
            {shape, Encoding::plain, Layout::tiles, Dtype::bf16},
            {shape, Encoding::affine8, Layout::tiles},
            {shape, Encoding::affine4, Layout::tiles},
            {shape, Encoding::fp8_row, Layout::rows},
            {shape, Encoding::nvfp4, Layout::rows}};
}

// Calls check(first element of the group, its values, what they became) for groups along the rows.
template <class F>
void by_group(const std::vector<float>& x, const std::vector<float>& y, std::size_t group, F check) {
    for (std::size_t i = 0; i < x.size(); i += group) check(i, &x[i], &y[i]);
}

// How far an affine value may be from its group's, by the covering rule: half a scale, which is the range
// from the bias (at most 2^-7 of the least value below it) in equal steps, rounded up to bf16 (by at most
// 2^-7).
double affine_bound(const float* x, double levels) {
    const auto [low, high] = std::minmax_element(x, x + kAffineGroup);
    const double range = double{*high} - double{*low} + std::abs(double{*low}) * 0x1p-7;
    const double scale = std::max(range / levels * (1 + 0x1p-7), double{kTiny});
    const double rounding = (std::abs(double{*low}) + std::abs(double{*high})) * 0x1p-23;  // of f32 sums
    return scale / 2 + rounding;
}

class Quantizers : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Quantizers, EightBitErrorsStayWithinHalfAStep) {
    const std::int64_t k = GetParam();
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 37 * k);
        const auto y = decode(encode(x, {{37, k}, Encoding::affine8, Layout::tiles}).view);
        by_group(x, y, kAffineGroup, [&](std::size_t at, const float* from, const float* to) {
            const double bound = affine_bound(from, 255);
            for (int i = 0; i < kAffineGroup; ++i)
                ASSERT_LE(std::abs(double{from[i]} - double{to[i]}), bound) << kind.name << " " << at + i;
        });
    }
}

TEST_P(Quantizers, FourBitErrorsAreNoLargerThanByCovering) {
    const std::int64_t k = GetParam();
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 37 * k);
        const auto y = decode(encode(x, {{37, k}, Encoding::affine4, Layout::tiles}).view);
        by_group(x, y, kAffineGroup, [&](std::size_t at, const float* from, const float* to) {
            const double bound = affine_bound(from, 15);
            double squares = 0;  // in units of the bound, which may be huge
            for (int i = 0; i < kAffineGroup; ++i)
                squares += std::pow((double{from[i]} - double{to[i]}) / bound, 2);
            ASSERT_LE(squares, kAffineGroup * (1 + 1e-4)) << kind.name << " " << at;
        });
    }
}

TEST_P(Quantizers, RowsOfEightBitFloatsKeepFourBinaryPlaces) {
    const std::int64_t k = GetParam();
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 37 * k);
        const auto w = encode(x, {{37, k}, Encoding::fp8_row, Layout::rows});
        const auto y = decode(w.view);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double scale = double{w.scales.as<float>()[i / static_cast<std::size_t>(k)]};
            const double bound = std::max(std::abs(double{x[i]}) * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6);
            ASSERT_LE(std::abs(double{x[i]} - double{y[i]}), bound) << kind.name << " " << i;
        }
    }
}

TEST_P(Quantizers, FourBitFloatsAreNoWorseThanWithTheLargestAtSix) {
    const std::int64_t k = GetParam();
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 37 * k);
        const auto w = encode(x, {{37, k}, Encoding::nvfp4, Layout::rows});
        const auto y = decode(w.view);
        const double global = double{w.globals.as<float>()[0]};
        by_group(x, y, kNvfp4Group, [&](std::size_t at, const float* from, const float* to) {
            double top = 0, squares = 0, allowed = 0;
            for (int i = 0; i < kNvfp4Group; ++i) top = std::max(top, std::abs(double{from[i]}));
            const auto code = std::max<std::uint8_t>(f32_to_e4m3(static_cast<float>(top / 6 / global)), 1);
            const double scale = double{e4m3_to_f32(code)} * global;
            for (int i = 0; i < kNvfp4Group; ++i) {
                const double step = std::abs(double{from[i]}) / scale;
                squares += std::pow((double{from[i]} - double{to[i]}) / scale, 2);
                // Half the distance of neighbours, and the last one's reach beyond itself.
                allowed += std::pow(step < 2 ? 0.25 : step < 4 ? 0.5 : 1, 2);
            }
            ASSERT_LE(squares, allowed * (1 + 1e-4)) << kind.name << " " << at;
        });
    }
}

TEST_P(Quantizers, Bf16IsRoundedOnceInBothLayouts) {
    const std::int64_t k = GetParam();
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 37 * k);
        for (const Layout layout : {Layout::rows, Layout::tiles}) {
            const auto y = decode(encode(x, {{37, k}, Encoding::plain, layout}).view);
            for (std::size_t i = 0; i < x.size(); ++i)
                ASSERT_EQ(y[i], round_bf16(x[i])) << kind.name << " " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, Quantizers, ::testing::ValuesIn(widths));

// What the search for the ends of a group is worth, on what weights look like.
TEST(Quantizers, FourBitsOfNormalNumbersLoseLittle) {
    const auto x = numbers(kinds()[0], 64 * 2816);
    const auto error_of = [&](Encoding encoding, Layout layout) {
        const auto y = decode(encode(x, {{64, 2816}, encoding, layout}).view);
        double error = 0, all = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            error += std::pow(double{x[i]} - double{y[i]}, 2);
            all += std::pow(double{x[i]}, 2);
        }
        return error / all;
    };
    // Covering gives 0.0062, an exhaustive search over the ends 0.0048.
    EXPECT_LT(error_of(Encoding::affine4, Layout::tiles), 0.0051);
    EXPECT_LT(error_of(Encoding::affine8, Layout::tiles), 0.000025);
    EXPECT_LT(error_of(Encoding::fp8_row, Layout::rows), 0.0008);
    // With the largest of each group at six it would be 0.0090.
    EXPECT_LT(error_of(Encoding::nvfp4, Layout::rows), 0.0069);
}

TEST(Quantizers, EveryMachineWritesTheSameBytes) {
    int compared = 0;
    for (const char* name : {"avx2", "avx512"}) {
        const QuantizeKernels* kernels = quantize_kernels_named(name);
        if (kernels == nullptr) continue;
        ++compared;
        for (const Kind& kind : kinds()) {
            for (const std::int64_t k : {std::int64_t{64}, std::int64_t{704}}) {
                const auto x = numbers(kind, 45 * k);
                for (const WeightForm& form : forms_of({45, k})) {
                    EXPECT_EQ(bytes_of(encode(x, form, 1, *kernels)),
                              bytes_of(encode(x, form, 1, quantize_baseline)))
                        << name << " " << kind.name << " " << name_of(form.encoding) << " " << k;
                }
            }
        }
        std::vector<float> noise(101), same(101);
        kernels->noise(7, 9, 101, 0.5f, noise.data());
        quantize_baseline.noise(7, 9, 101, 0.5f, same.data());
        EXPECT_EQ(noise, same);
    }
    if (compared == 0) GTEST_SKIP() << "skipped: this machine has one table of kernels only";
}

TEST(Quantizers, TheNumberOfThreadsAndOfTilesAtOnceChangesNothing) {
    const Shape shape{3, 77, 96};
    const auto x = numbers(kinds()[0], 3 * 77 * 96);
    for (const WeightForm& form : forms_of(shape)) {
        const OwnedWeight whole = encode(x, form, 1);
        EXPECT_EQ(bytes_of(encode(x, form, 3)), bytes_of(whole));
        // Tile by tile, as a bank is streamed.
        ThreadPool pool(1);
        const StoredRows rows(f32_view(x, shape));
        WeightEncoder encoder("w", form, rows);
        std::string codes, scales;
        for (std::int64_t tile = 0; tile < encoder.tiles(); ++tile) {
            const WeightBytes begin = encoder.offset(tile), end = encoder.offset(tile + 1);
            Buffer a(end.codes - begin.codes), b(end.scales - begin.scales), c(end.biases - begin.biases);
            ASSERT_TRUE(encoder.encode(tile, tile + 1, {a.data(), b.data(), c.data()}, pool));
            codes.append(reinterpret_cast<const char*>(a.data()), a.size());
            scales.append(reinterpret_cast<const char*>(b.data()), b.size());
        }
        const auto text = [](const Buffer& b) {
            return std::string(reinterpret_cast<const char*>(b.data()), b.size());
        };
        EXPECT_EQ(codes, text(whole.codes)) << name_of(form.encoding);
        EXPECT_EQ(scales, text(whole.scales)) << name_of(form.encoding);
    }
}

TEST(Quantizers, ReadsWhatWeightViewSays) {
    // A bank of two matrices of 33 rows and 32 columns: the last row of the second one is row 0 of its second
    // tile. Codes are counted up, scales and biases are different in every group.
    constexpr std::int64_t rows = 33, k = 32, at = 2 * rows - 1;
    std::vector<std::byte> codes(2 * 64 * 32);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 31 + i / 256);
    std::vector<std::uint16_t> scales(2 * 64), biases(2 * 64);
    for (std::size_t i = 0; i < scales.size(); ++i) {
        scales[i] = f32_to_bf16(static_cast<float>(i + 1));
        biases[i] = f32_to_bf16(-static_cast<float>(i));
    }
    const auto bytes = [](const auto& v) { return reinterpret_cast<const std::byte*>(v.data()); };
    WeightView w{.shape = {2, rows, k},
                 .encoding = Encoding::affine8,
                 .layout = Layout::tiles,
                 .codes = codes.data(),
                 .scales = bytes(scales),
                 .biases = bytes(biases)};
    std::vector<float> out(k);
    decode_rows(w, at, 1, out.data(), k);
    const std::size_t tile = 3, lane = 0;
    for (std::size_t c = 0; c < k; ++c) {
        const auto q = std::to_integer<int>(codes[tile * 32 * k + (c / 4 * 32 + lane) * 4 + c % 4]);
        EXPECT_EQ(out[c], bf16_to_f32(scales[tile * 32 + lane]) * static_cast<float>(q) +
                              bf16_to_f32(biases[tile * 32 + lane]));
    }
    w.encoding = Encoding::affine4;
    decode_rows(w, at - 1, 1, out.data(), k);  // lane 31 of tile 2
    for (std::size_t c = 0; c < k; ++c) {
        const auto byte = std::to_integer<int>(codes[2 * 16 * k + (c / 8 * 32 + 31) * 4 + c % 4]);
        const int q = c % 8 < 4 ? byte & 15 : byte >> 4;
        EXPECT_EQ(out[c], bf16_to_f32(scales[2 * 32 + 31]) * static_cast<float>(q) +
                              bf16_to_f32(biases[2 * 32 + 31]));
    }
    w.layout = Layout::rows;
    decode_rows(w, 5, 1, out.data(), k);
    EXPECT_EQ(out[2],
              bf16_to_f32(scales[5]) * static_cast<float>(std::to_integer<int>(codes[5 * 16 + 1]) & 15) +
                  bf16_to_f32(biases[5]));
    EXPECT_EQ(out[3],
              bf16_to_f32(scales[5]) * static_cast<float>(std::to_integer<int>(codes[5 * 16 + 1]) >> 4) +
                  bf16_to_f32(biases[5]));
}

TEST(Quantizers, LayoutsHoldTheSameNumbers) {
    const Shape shape{2, 45, 96};
    const auto x = numbers(kinds()[0], 2 * 45 * 96);
    for (const WeightForm& form : forms_of(shape)) {
        const OwnedWeight made = encode(x, form);
        const Layout other = form.layout == Layout::tiles ? Layout::rows : Layout::tiles;
        const auto moved = with_layout(made.view, other);
        const bool has_both =
            form.layout == Layout::tiles || (form.encoding == Encoding::plain && form.type == Dtype::bf16);
        ASSERT_EQ(moved.ok(), has_both) << name_of(form.encoding);
        if (!has_both) continue;
        EXPECT_EQ(decode(moved->view), decode(made.view));
        const auto back = with_layout(moved->view, form.layout);
        ASSERT_TRUE(back);
        EXPECT_EQ(bytes_of(*back), bytes_of(made)) << name_of(form.encoding);
    }
}

TEST(Quantizers, TheRowsThatFillATileAreZero) {
    const auto x = numbers(kinds()[3], 3 * 64);
    for (const Encoding encoding : {Encoding::affine8, Encoding::affine4}) {
        const OwnedWeight w = encode(x, {{3, 64}, encoding, Layout::tiles});
        for (std::int64_t g = 0; g < 2; ++g) {
            for (std::int64_t r = 3; r < 32; ++r) {
                EXPECT_EQ(w.scales.as<std::uint16_t>()[static_cast<std::size_t>(g * 32 + r)], 0);
                EXPECT_EQ(w.biases.as<std::uint16_t>()[static_cast<std::size_t>(g * 32 + r)], 0);
            }
        }
        for (std::size_t word = 0; word < w.codes.size() / 4; ++word) {
            EXPECT_TRUE(word % 32 < 3 || w.codes.as<std::uint32_t>()[word] == 0) << word;
        }
    }
}

TEST(Quantizers, ConstantsAreExact) {
    for (const float value : {0.0f, -0.3125f, 1.5f, 0x1p100f, -0x1p-120f}) {
        const std::vector<float> x(2 * 64, value);
        for (const Encoding encoding : {Encoding::affine8, Encoding::affine4})
            EXPECT_EQ(decode(encode(x, {{2, 64}, encoding, Layout::tiles}).view), x) << value;
    }
}

TEST(Quantizers, BadNumbersAreNamedWithTheirPlace) {
    const Shape shape{2, 40, 64};
    struct Case {
        float value;
        const char* word;
    };
    for (const Case& c :
         {Case{std::nanf(""), "a NaN"}, Case{std::numeric_limits<float>::infinity(), "an infinity"},
          Case{-3e38f, "the number -3e+38"}}) {
        auto x = numbers(kinds()[0], 2 * 40 * 64);
        x[(40 + 33) * 64 + 7] = c.value;
        x[(40 + 35) * 64 + 9] = c.value;  // not the first one
        for (const WeightForm& form : forms_of(shape)) {
            ThreadPool pool(2);
            const auto out = encode_weight("model.decoder.bank", form, StoredRows(f32_view(x, shape)), pool);
            ASSERT_FALSE(out) << name_of(form.encoding);
            EXPECT_EQ(out.error().kind, ErrorKind::invalid);
            EXPECT_EQ(out.error().message,
                      std::string("Tensor \"model.decoder.bank\" holds ") + c.word +
                          " at [1, 33, 7], which no weight can be: the model is damaged; download it again.");
        }
    }
}

TEST(Quantizers, HalvesStayAsTheyAre) {
    std::vector<std::uint16_t> halves;
    for (std::uint32_t i = 0; i < 96; ++i) halves.push_back(static_cast<std::uint16_t>(i * 317 % 0x7C00));
    const WeightView source =
        WeightView::of({reinterpret_cast<const std::byte*>(halves.data()), Dtype::f16, {3, 32}});
    ThreadPool pool(1);
    const auto kept =
        encode_weight("w", {{3, 32}, Encoding::plain, Layout::rows, Dtype::f16}, StoredRows(source), pool);
    ASSERT_TRUE(kept);
    EXPECT_EQ(std::memcmp(kept->codes.data(), halves.data(), 192), 0);
    EXPECT_FALSE(can_encode({{3, 32}, Encoding::plain, Layout::tiles, Dtype::f16}));
    EXPECT_FALSE(can_encode({{3, 32}, Encoding::affine8, Layout::rows}));
    EXPECT_FALSE(can_encode({{3, 48}, Encoding::affine8, Layout::tiles}));
    EXPECT_FALSE(encode_weight("w", {{3, 48}, Encoding::affine4, Layout::tiles}, StoredRows(source), pool));
}

TEST(Quantizers, TheComparisonAllowsWhatTheEncoderDoesAndNoMore) {
    const Shape shape{2, 37, 192};
    ThreadPool pool(2);
    for (const Kind& kind : kinds()) {
        const auto x = numbers(kind, 2 * 37 * 192);
        const StoredRows source(f32_view(x, shape));
        for (const WeightForm& form : forms_of(shape)) {
            const OwnedWeight w = encode(x, form);
            const auto same = compare_weight(StoredRows(w.view), source, pool, {});
            ASSERT_TRUE(same);
            EXPECT_LE(same->worst, 1.001) << kind.name << " " << name_of(form.encoding);
            EXPECT_EQ(same->elements, 2 * 37 * 192);
        }
    }
    // One number that is somebody else's.
    const auto x = numbers(kinds()[0], 2 * 37 * 192);
    auto other = x;
    other[200] += 0.5f;
    for (const WeightForm& form : forms_of(shape)) {
        const OwnedWeight w = encode(x, form);
        const auto different =
            compare_weight(StoredRows(w.view), StoredRows(f32_view(other, shape)), pool, {});
        EXPECT_GT(different->worst, 2) << name_of(form.encoding);
    }
}

TEST(Quantizers, NoiseIsNearlyNormalAndOfItsPlace) {
    constexpr std::int64_t n = 1 << 16;
    std::vector<float> a(n), b(n), part(10);
    const QuantizeKernels& kernels = choose_quantize_kernels();
    kernels.noise(1, 2, n, 2, a.data());
    kernels.noise(1, 3, n, 2, b.data());
    kernels.noise(1, 2, 10, 2, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), a.begin()));
    double mean = 0, variance = 0, product = 0, beyond = 0, neighbours = 0;
    for (std::size_t i = 0; i < n; ++i) {
        mean += double{a[i]};
        variance += double{a[i]} * double{a[i]};
        product += double{a[i]} * double{b[i]};
        beyond += std::abs(a[i]) > 4 ? 1 : 0;
        if (i > 0) neighbours += double{a[i]} * double{a[i - 1]};
    }
    EXPECT_NEAR(mean / n, 0, 0.03);
    EXPECT_NEAR(variance / n, 4, 0.08);
    EXPECT_NEAR(product / n, 0, 0.08);
    EXPECT_NEAR(neighbours / n, 0, 0.08);
    EXPECT_NEAR(beyond / n, 0.0455, 0.005);  // beyond two deviations
}

}  // namespace
}  // namespace dgemma::files
