// What the tests of E4M3 share: backends, and numbers of which nothing is rounded.
//
// Whole numbers whose sums over 128 columns stay below 2^13 fit the matrix unit's sums, and with a largest
// activation of 448 and scales of weights that are powers of two nothing is rounded before the result: a
// column, a scale or a token at the wrong place changes a bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/e4m3_weight.h"
#include "base/e4m3_rows.h"
#include "cuda/device.h"

namespace dgemma::testing {

using Floats = std::vector<float>;

// 4-byte elements of a matrix that operations read: ids of experts, their weights.
template <class T>
void set_wide(backend::Backend& b, const backend::Mat& m, const std::vector<T>& values) {
    if (b.name() != "cuda") {
        std::memcpy(m.data, values.data(), values.size() * 4);
        return;
    }
    // An upload rounds to bf16, and halves of these elements are bf16 numbers as they are.
    Floats halves;
    for (const T& value : values) {
        std::uint16_t parts[2];
        std::memcpy(parts, &value, 4);
        halves.push_back(bf16_to_f32(parts[0]));
        halves.push_back(bf16_to_f32(parts[1]));
    }
    b.upload(halves, {m.data, m.rows, 2 * m.cols});
}

class E4m3 : public ::testing::Test {
  protected:
    using Backend = backend::Backend;
    using Mat = backend::Mat;
    using Precision = backend::Precision;
    using Weight = backend::Weight;

    void SetUp() override {
        const auto devices = backend::cuda_devices();
        if (!devices || devices->empty() || devices->front().major != 9 || devices->front().minor != 0)
            GTEST_SKIP() << "skipped: needs a card of compute capability 9.0";
        device = DeviceMat::take(backend::make_cuda_backend(Precision::bf16, {.e4m3_activations = true}));
        plain = make_device({Precision::bf16, true});
        reference = backend::make_reference_backend(Precision::bf16, true);
    }
    std::int32_t whole(std::int32_t least, std::int32_t most) {
        return least + data.ints(1, most - least + 1)[0];
    }
    Floats wholes(std::int64_t n, std::int32_t least, std::int32_t most) {
        Floats out;
        for (const std::int32_t i : data.ints(n, most - least + 1))
            out.push_back(static_cast<float>(least + i));
        return out;
    }
    Floats activations(std::int64_t n, float scale = 1) {
        Floats x = data.floats(n, scale);
        for (float& v : x) v = round_bf16(v);
        return x;
    }
    // Rows of -3 to 3 with one 448 each.
    Floats exact_rows(std::int64_t rows, std::int64_t cols) {
        Floats x = wholes(rows * cols, -3, 3);
        for (std::int64_t r = 0; r < rows; ++r)
            x[static_cast<std::size_t>(r * cols + whole(0, static_cast<std::int32_t>(cols) - 1))] = 448;
        return x;
    }
    // The same for exact_mlp: the first two columns are 1, and the 448 is one of the last three.
    Floats exact_mlp_rows(std::int64_t rows, std::int64_t cols) {
        Floats x = wholes(rows * cols, -3, 3);
        for (std::int64_t r = 0; r < rows; ++r) {
            x[static_cast<std::size_t>(r * cols)] = x[static_cast<std::size_t>(r * cols + 1)] = 1;
            x[static_cast<std::size_t>((r + 1) * cols - 1 - r % 3)] = 448;
        }
        return x;
    }
    // A weight of N(0, scale), each row in codes as a quantiser makes them.
    E4m3Weight& random(const Shape& shape, float scale) {
        const std::int64_t ins = shape.back(), rows = elements_of(shape) / ins;
        const Floats values = data.floats(rows * ins, scale);
        weights.push_back(std::make_unique<E4m3Weight>(shape, values, 1.0f));
        E4m3Weight& w = *weights.back();
        for (std::int64_t r = 0; r < rows; ++r) {
            const auto at = static_cast<std::size_t>(r * ins), n = static_cast<std::size_t>(ins);
            w.scales[static_cast<std::size_t>(r)] =
                quantise_e4m3(std::span(values).subspan(at, n), std::span(w.codes).subspan(at, n));
        }
        return w;
    }
    // The three matrices of a gated MLP whose hidden layer is 8 times whole numbers up to 15, but for a 448
    // among every 128 of them. Gates are 8 (and gelu(8) is 8), by the first column; the 448 are 8 * 56, by
    // the second; the last three columns, where a row has its own 448, count for nothing.
    struct ExactMlp {
        Floats gate, up, down;
    };
    ExactMlp exact_mlp(std::int64_t hidden, std::int64_t width) {
        ExactMlp m{Floats(static_cast<std::size_t>(width * hidden)),
                   Floats(static_cast<std::size_t>(width * hidden)), wholes(hidden * width, -1, 1)};
        for (std::int64_t i = 0; i < width; ++i) {
            m.gate[static_cast<std::size_t>(i * hidden)] = 8;
            for (int n = 0; n < 5; ++n) {
                m.up[static_cast<std::size_t>(i * hidden + whole(2, static_cast<std::int32_t>(hidden) - 4))] =
                    static_cast<float>(whole(-1, 1));
            }
        }
        for (std::int64_t piece = 0; piece < width; piece += kE4m3HiddenColumns) {
            const std::int64_t columns = std::min(kE4m3HiddenColumns, width - piece);
            const auto row =
                m.up.begin() + (piece + whole(0, static_cast<std::int32_t>(columns) - 1)) * hidden;
            std::fill_n(row, hidden, 0.0f);
            row[1] = 56;
        }
        return m;
    }
    template <class F>
    void exactly(F f, const std::string& what) {
        const Floats got = f(*device), want = f(*reference);
        ASSERT_EQ(got.size(), want.size());
        std::size_t differ = 0, first = 0;
        for (std::size_t i = got.size(); i-- > 0;) {
            if (got[i] != want[i]) ++differ, first = i;
        }
        ASSERT_EQ(differ, 0u) << what << ": of " << got.size() << " numbers differ; the first, number "
                              << first << ", is " << got[first] << " and not " << want[first];
        EXPECT_EQ(got, f(*device)) << what << ": another run gave other bits";
    }
    template <class F>
    void nearly(F f, double bound, const std::string& what) {
        const Floats got = f(*device);
        EXPECT_LE(relative_error(got, f(*reference)), bound) << what;
        EXPECT_EQ(got, f(*device)) << what << ": another run gave other bits";
    }
    static Floats project(Backend& b, const Floats& x, const E4m3Weight& w) {
        const std::int64_t ins = w.view.shape[1], rows = static_cast<std::int64_t>(x.size()) / ins;
        const DeviceMat in(b, rows, ins, x), out(b, rows, w.view.shape[0]);
        b.project(in.mat, *DeviceMat::take(b.prepare_projection(w.view)), out.mat);
        return out.values();
    }
    static std::unique_ptr<Weight> branch(Backend& b, const E4m3Weight& w) {
        return DeviceMat::take(b.prepare_branch(w.view));
    }
    static Floats mlp(Backend& b, const Floats& x, const E4m3Weight& gate, const E4m3Weight& up,
                      const E4m3Weight& down) {
        const std::int64_t hidden = down.view.shape[0], rows = static_cast<std::int64_t>(x.size()) / hidden;
        const DeviceMat in(b, rows, hidden, x), out(b, rows, hidden);
        b.gated_mlp(in.mat, *branch(b, gate), *branch(b, up), *branch(b, down), out.mat);
        return out.values();
    }
    struct Choices {
        std::vector<std::int32_t> ids;  // [rows, k], ascending
        Floats shares;                  // powers of two
    };
    // The first `common` experts get every row, the last one none.
    Choices choices(std::int64_t rows, std::int32_t experts, std::int32_t k, std::int32_t common) {
        Choices c;
        for (std::int64_t r = 0; r < rows; ++r) {
            std::vector<std::int32_t> own(static_cast<std::size_t>(common));
            for (std::int32_t i = 0; i < common; ++i) own[static_cast<std::size_t>(i)] = i;
            while (own.size() < static_cast<std::size_t>(k)) {
                const std::int32_t e = whole(common, experts - 2);
                if (std::find(own.begin(), own.end(), e) == own.end()) own.push_back(e);
            }
            std::sort(own.begin(), own.end());
            c.ids.insert(c.ids.end(), own.begin(), own.end());
            for (std::int32_t i = 0; i < k; ++i) c.shares.push_back(std::ldexp(1.0f, -whole(0, 4)));
        }
        return c;
    }
    static Floats experts(Backend& b, const Floats& x, const Choices& c, const Weight& gate_up,
                          const Weight& down) {
        const std::int64_t hidden = down.shape()[1], rows = static_cast<std::int64_t>(x.size()) / hidden;
        const auto k = static_cast<std::int64_t>(c.ids.size()) / rows;
        const DeviceMat in(b, rows, hidden, x), out(b, rows, hidden);
        const WideMat ids(b, rows, k), shares(b, rows, k);
        set_wide(b, ids.mat, c.ids);
        set_wide(b, shares.mat, c.shares);
        b.experts(in.mat, {ids.mat, shares.mat, {}}, gate_up, down, out.mat);
        return out.values();
    }

    RandomData data{static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + 11};
    std::vector<std::unique_ptr<E4m3Weight>> weights;
    std::unique_ptr<Backend> device, plain, reference;
};

}  // namespace dgemma::testing
