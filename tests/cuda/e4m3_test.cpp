// Weights and activations in E4M3 on Hopper against the scalar oracle, which quantises activations alike.
//
// Most of it is exact. Whole numbers whose sums over 128 columns stay below 2^13 fit the matrix unit's sums,
// and with a largest activation of 448 and scales of weights that are powers of two nothing is rounded before
// the result: a column, a scale or a token at the wrong place changes a bit.
#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>

#include <gtest/gtest.h>

#include "backend/e4m3_weight.h"
#include "base/e4m3_rows.h"
#include "cuda/device.h"

namespace dgemma::testing {
namespace {

using backend::Backend;
using backend::Mat;
using backend::Precision;
using backend::Weight;

using Floats = std::vector<float>;

// 4-byte elements of a matrix that operations read: ids of experts, their weights.
template <class T>
void set_wide(Backend& b, const Mat& m, const std::vector<T>& values) {
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
    // among every 64 of them. Gates are 8 (and gelu(8) is 8), by the first column; the 448 are 8 * 56, by the
    // second; the last three columns, where a row has its own 448, count for nothing.
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
            const auto row = m.up.begin() + (piece + whole(0, kE4m3HiddenColumns - 1)) * hidden;
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

// With the unit matrix for a weight what comes out is what became of the rows.
TEST_F(E4m3, RowsBecomeWhatTheTwinSays) {
    constexpr std::int64_t n = 128;
    Floats unit(n * n);
    for (std::int64_t i = 0; i < n; ++i) unit[static_cast<std::size_t>(i * n + i)] = 1;
    const E4m3Weight w({n, n}, unit, 1);
    Floats x;
    const auto row = [&](const std::function<float(int)>& f) {
        for (int i = 0; i < n; ++i) x.push_back(round_bf16(f(i)));
    };
    row([](int) { return 0.0f; });
    // All ties of a scale of one, and what lies next to them: bf16 has five more bits.
    row([](int i) {
        return i == 0 ? 448
                      : (e4m3_to_f32(static_cast<std::uint8_t>(i - 1)) +
                         e4m3_to_f32(static_cast<std::uint8_t>(i))) /
                            2;
    });
    row([](int i) {
        return i == 0 ? -448
                      : -1.0078125f *
                            (e4m3_to_f32(static_cast<std::uint8_t>(i - 1)) +
                             e4m3_to_f32(static_cast<std::uint8_t>(i))) /
                            2;
    });
    x[static_cast<std::size_t>(2 * n - 1)] = x[static_cast<std::size_t>(3 * n - 1)] =
        3;  // not the NaN of code 127
    row([](int i) { return i == 0 ? 3e38f : std::ldexp(1.0f, i - 100); });
    row([](int i) { return std::ldexp(1.0f, -126 - i % 7); });
    for (int i = 0; i < 32; ++i) {
        const Floats normal = data.floats(n, std::ldexp(1.0f, 6 * i - 96));
        row([&](int c) { return normal[static_cast<std::size_t>(c)]; });
    }
    exactly([&](Backend& b) { return project(b, x, w); }, "rows in E4M3");
}

TEST_F(E4m3, ProjectExactly) {
    for (const auto& [rows, ins, outs] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 64, 64},
                                          {3, 192, 128},
                                          {130, 704, 192},
                                          {257, 128, 2816},
                                          {600, 256, 320},
                                          {5, 2816, 4096},
                                          {3, 4096, 2816},
                                          {1, 8192, 2816},
                                          {37, 2816, 1408}}) {
        const Floats x = exact_rows(rows, ins);
        const E4m3Weight w({outs, ins}, wholes(outs * ins, -1, 1), 0.125f);
        exactly([&](Backend& b) { return project(b, x, w); },
                "project " + std::to_string(rows) + "x" + std::to_string(ins) + "x" + std::to_string(outs));
    }
}

// Of random numbers every sum is off by what the matrix unit drops: of 32 products and the sum so far, each
// up to 2^-13 of the largest of them, four times in 128 columns; and by a rounding to bf16.
TEST_F(E4m3, ProjectOffByWhatTheMatrixUnitDrops) {
    const std::int64_t rows = 37, ins = 2816, outs = 256;
    const Floats x = activations(rows * ins);
    const E4m3Weight& w = random({outs, ins}, 0.02f);
    const Floats got = project(*device, x, w);
    double error = 0, norm = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
        Floats row(x.begin() + r * ins, x.begin() + (r + 1) * ins);
        round_to_e4m3(row);
        for (std::int64_t o = 0; o < outs; ++o) {
            double sum = 0, dropped = 0;
            for (std::int64_t k0 = 0; k0 < ins; k0 += 128) {
                double part = 0, largest = 0;
                for (std::int64_t k = k0; k < k0 + 128; ++k) {
                    const double product =
                        static_cast<double>(row[static_cast<std::size_t>(k)]) * w.value(o, k);
                    part += product;
                    largest = std::max({largest, std::abs(product), std::abs(part)});
                }
                sum += part;
                dropped += 4 * 33 * 0x1p-13 * largest;
            }
            const double off = std::abs(got[static_cast<std::size_t>(r * outs + o)] - sum);
            ASSERT_LE(off, dropped + 0x1p-8 * std::abs(sum)) << r << ", " << o;
            error += off * off, norm += sum * sum;
        }
    }
    // Dropped bits have no sign of their own, so that together they are far less: below a rounding to bf16.
    EXPECT_LE(std::sqrt(error / norm), 4e-3);
}

TEST_F(E4m3, GatedMlpExactly) {
    for (const auto& [rows, hidden, width] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 64, 64},
                                              {5, 192, 64},
                                              {17, 128, 192},
                                              {33, 320, 448},
                                              {131, 256, 704},
                                              {300, 128, 128},
                                              {9, 2816, 2112}}) {
        const Floats x = exact_mlp_rows(rows, hidden);
        const ExactMlp m = exact_mlp(hidden, width);
        const E4m3Weight gate({width, hidden}, m.gate, 1), up({width, hidden}, m.up, 1),
            down({hidden, width}, m.down, 0.03125f);
        exactly(
            [&](Backend& b) { return mlp(b, x, gate, up, down); },
            "gated_mlp " + std::to_string(rows) + "x" + std::to_string(hidden) + "x" + std::to_string(width));
    }
}

TEST_F(E4m3, ExpertsExactly) {
    struct Case {
        std::int64_t rows, hidden, width;
        std::int32_t experts, k, common;
    };
    for (const Case& c : {Case{1, 64, 64, 4, 2, 0},
                          {29, 128, 64, 16, 4, 0},
                          {150, 192, 128, 16, 4, 2},
                          {70, 128, 64, 130, 8, 3},
                          {11, 2816, 704, 8, 4, 1}}) {
        const Floats x = exact_mlp_rows(c.rows, c.hidden);
        Floats gate_up, down;
        for (std::int32_t e = 0; e < c.experts; ++e) {
            const ExactMlp m = exact_mlp(c.hidden, c.width);
            gate_up.insert(gate_up.end(), m.gate.begin(), m.gate.end());
            gate_up.insert(gate_up.end(), m.up.begin(), m.up.end());
            down.insert(down.end(), m.down.begin(), m.down.end());
        }
        const E4m3Weight first({c.experts, 2 * c.width, c.hidden}, gate_up, 1),
            second({c.experts, c.hidden, c.width}, down, 0.03125f);
        const Choices chosen = choices(c.rows, c.experts, c.k, c.common);
        exactly([&](Backend& b) { return experts(b, x, chosen, *branch(b, first), *branch(b, second)); },
                "experts " + std::to_string(c.rows) + "x" + std::to_string(c.hidden));
    }
}

// Random numbers through an MLP: where a sum is off by a bit of bf16 and a hidden number that near the middle
// between two codes, it becomes the other one, up to an eighth of it away. With a matrix unit simulated,
// which cuts products and sums 13 bits below the largest of them, one in forty did, and results were off
// by 1.05e-2; by 1.1e-3 those of a projection.
TEST_F(E4m3, MlpAndExpertsNearly) {
    const std::int64_t rows = 21, hidden = 2816;
    const Floats x = activations(rows * hidden);
    const E4m3Weight &gate = random({2112, hidden}, 0.02f), &up = random({2112, hidden}, 0.02f),
                     &down = random({hidden, 2112}, 0.02f);
    nearly([&](Backend& b) { return mlp(b, x, gate, up, down); }, 2e-2, "gated_mlp");
    const E4m3Weight &first = random({8, 2 * 704, hidden}, 0.02f), &second = random({8, hidden, 704}, 0.04f);
    const Choices chosen = choices(rows, 8, 4, 1);
    nearly([&](Backend& b) { return experts(b, x, chosen, *branch(b, first), *branch(b, second)); }, 2e-2,
           "experts");
}

TEST_F(E4m3, ARowDependsOnItselfAlone) {
    const std::int64_t hidden = 512, width = 320, rows = 300;
    const Floats x = activations(rows * hidden);
    const E4m3Weight &gate = random({width, hidden}, 0.05f), &up = random({width, hidden}, 0.05f),
                     &down = random({hidden, width}, 0.05f), &narrow = random({64, hidden}, 0.05f);
    const Choices chosen = choices(rows, 6, 4, 1);
    const auto first = branch(*device, random({6, 2 * width, hidden}, 0.05f)),
               second = branch(*device, random({6, hidden, width}, 0.05f));
    const auto part = [&](std::int64_t from, std::int64_t count) {
        const Floats own(x.begin() + from * hidden, x.begin() + (from + count) * hidden);
        const Choices few{{chosen.ids.begin() + from * 4, chosen.ids.begin() + (from + count) * 4},
                          {chosen.shares.begin() + from * 4, chosen.shares.begin() + (from + count) * 4}};
        return std::vector<Floats>{mlp(*device, own, gate, up, down), project(*device, own, gate),
                                   project(*device, own, narrow),
                                   experts(*device, own, few, *first, *second)};
    };
    const std::vector<Floats> all = part(0, rows);
    for (const auto& [from, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {150, 1}, {3, 20}, {64, 65}, {7, 290}}) {
        const std::vector<Floats> some = part(from, count);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const auto outs = static_cast<std::int64_t>(all[i].size()) / rows;
            EXPECT_TRUE(std::equal(some[i].begin(), some[i].end(), all[i].begin() + from * outs))
                << "operation " << i << ", rows " << from << " to " << from + count;
        }
    }
}

// A row that is not finite must come out so, for the watch to see, and leave others as they are.
TEST_F(E4m3, BrokenRowsStayBrokenAndAlone) {
    const std::int64_t hidden = 256, width = 128, rows = 20;
    const Floats sound = activations(rows * hidden);
    Floats x = sound;
    x[2 * hidden + 5] = std::numeric_limits<float>::quiet_NaN();
    x[11 * hidden + 255] = -std::numeric_limits<float>::infinity();
    const E4m3Weight &gate = random({width, hidden}, 0.05f), &up = random({width, hidden}, 0.05f),
                     &down = random({hidden, width}, 0.05f);
    const Choices chosen = choices(rows, 6, 4, 1);
    const auto first = branch(*device, random({6, 2 * width, hidden}, 0.05f)),
               second = branch(*device, random({6, hidden, width}, 0.05f));
    const auto run = [&](const Floats& from) {
        return std::vector<Floats>{project(*device, from, gate), mlp(*device, from, gate, up, down),
                                   experts(*device, from, chosen, *first, *second)};
    };
    const std::vector<Floats> got = run(x), want = run(sound);
    for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t outs = got[i].size() / rows;
        for (std::size_t n = 0; n < got[i].size(); ++n) {
            if (n / outs == 2 || n / outs == 11) {
                EXPECT_TRUE(std::isnan(got[i][n])) << "operation " << i << ", number " << n;
            } else {
                EXPECT_EQ(got[i][n], want[i][n]) << "operation " << i << ", number " << n;
            }
        }
    }
}

// What norms quantise on the way is what the kernel of its own makes of the same rows.
TEST_F(E4m3, NormsQuantiseOnTheWay) {
    const std::int64_t rows = 41, hidden = 2816, width = 128, dim = 64;
    const std::int32_t count = 16, k = 4;
    Backend& b = *device;
    const HostTensor ones(Floats(static_cast<std::size_t>(hidden), 1), Dtype::f32, {hidden}),
        uneven(data.floats(hidden, 0.3f, 1), Dtype::f32, {hidden}), scalar({0.8f}, Dtype::f32, {1}),
        head(Floats(static_cast<std::size_t>(dim), 1), Dtype::f32, {dim}),
        per_expert(Floats(static_cast<std::size_t>(count), 1), Dtype::f32, {count}),
        proj(data.floats(count * hidden, 0.5f), Dtype::bf16, {count, hidden});
    const auto w1 = weight(b, ones), w2 = weight(b, uneven), ws = weight(b, scalar), wh = weight(b, head),
               we = weight(b, per_expert), wp = weight(b, proj);
    const auto gate = branch(b, random({width, hidden}, 0.02f)),
               up = branch(b, random({width, hidden}, 0.02f)),
               down = branch(b, random({hidden, width}, 0.1f)),
               first = branch(b, random({count, 2 * width, hidden}, 0.02f)),
               second = branch(b, random({count, hidden, width}, 0.1f));
    const auto projection = [&](std::int64_t outs) {
        return DeviceMat::take(b.prepare_projection(random({outs, hidden}, 0.02f).view));
    };
    const auto wq = projection(4 * dim), wk = projection(2 * dim), wv = projection(2 * dim);
    const backend::RouterWeights router{w2.get(), wp.get(), we.get(), 1.0f / std::sqrt(2816.0f), 1e-6f};

    const DeviceMat h(b, rows, hidden, activations(rows * hidden)),
        added(b, rows, hidden, activations(rows * hidden, 3)), dense_in(b, rows, hidden),
        experts_in(b, rows, hidden), dense(b, rows, hidden), sparse(b, rows, hidden), out(b, rows, hidden),
        next(b, rows, hidden);
    const WideMat ids(b, rows, k), shares(b, rows, k);
    const auto branches = [&](const Mat& d, const Mat& e) {
        b.branches({.dense_in = d,
                    .gate = gate.get(),
                    .up = up.get(),
                    .down = down.get(),
                    .dense = dense.mat,
                    .h = h.mat,
                    .router = router,
                    .routing = {ids.mat, shares.mat, {}},
                    .experts_in = e,
                    .gate_up = first.get(),
                    .expert_down = second.get(),
                    .experts = sparse.mat});
    };
    // Made before: an upload, such as their first NaN, makes the backend forget what was quantised.
    const DeviceMat q(b, rows, 4 * dim), key(b, rows, 2 * dim), v(b, rows, 2 * dim);
    const auto inputs = [&](const Mat& x) {
        b.attention_inputs({.x = x,
                            .q_proj = wq.get(),
                            .k_proj = wk.get(),
                            .v_proj = wv.get(),
                            .q_norm = wh.get(),
                            .k_norm = wh.get(),
                            .frequencies = nullptr,
                            .positions = {},
                            .head_dim = dim,
                            .eps = 1e-6f,
                            .q = q.mat,
                            .k = key.mat,
                            .v = v.mat});
        Floats all = q.values();
        for (const DeviceMat* m : {&key, &v}) {
            const Floats more = m->values();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    };
    ASSERT_TRUE(b.begin_pass({.rows = rows, .numbers = {}, .segments = {}, .canvases = {}}).ok());
    b.after_attention({.branch = added.mat,
                       .norm = w2.get(),
                       .dense_norm = w2.get(),
                       .experts_norm = w1.get(),
                       .eps = 1e-6f,
                       .h = h.mat,
                       .dense = dense_in.mat,
                       .experts = experts_in.mat,
                       .router = &router});
    branches(dense_in.mat, experts_in.mat);
    const Floats dense_out = dense.values(), sparse_out = sparse.values();
    b.finish_layer({.residual = h.mat,
                    .dense = dense.mat,
                    .sparse = sparse.mat,
                    .dense_norm = w1.get(),
                    .sparse_norm = w1.get(),
                    .norm = w2.get(),
                    .scalar = ws.get(),
                    .eps = 1e-6f,
                    .out = out.mat},
                   1, w2.get(), next.mat);
    const Floats after = inputs(next.mat);
    EXPECT_EQ(after, inputs(DeviceMat(b, rows, hidden, next.values()).mat));
    const DeviceMat dense_copy(b, rows, hidden, dense_in.values()),
        experts_copy(b, rows, hidden, experts_in.values());
    branches(dense_copy.mat, experts_copy.mat);
    EXPECT_EQ(dense.values(), dense_out);
    EXPECT_EQ(sparse.values(), sparse_out);
    b.after_attention({.branch = added.mat,
                       .norm = w2.get(),
                       .dense_norm = w2.get(),
                       .experts_norm = w1.get(),
                       .eps = 1e-6f,
                       .h = out.mat,
                       .dense = dense_in.mat,
                       .experts = experts_in.mat,
                       .router = nullptr});
    // Other rows were quantised last, and the copies must not be taken for them.
    branches(dense_copy.mat, experts_copy.mat);
    EXPECT_EQ(dense.values(), dense_out);
    EXPECT_EQ(sparse.values(), sparse_out);
    ASSERT_TRUE(b.end_pass().ok());
}

// Without the option weights stay what they were: bf16 activations, no code of them.
TEST_F(E4m3, OnlyWhereAskedFor) {
    const std::int64_t rows = 5, ins = 256, outs = 128;
    const Floats x = activations(rows * ins);
    const E4m3Weight& w = random({outs, ins}, 0.05f);
    const auto exact = backend::make_reference_backend(Precision::bf16);
    EXPECT_LE(relative_error(project(*plain, x, w), project(*exact, x, w)), 8e-3);
    EXPECT_GT(relative_error(project(*device, x, w), project(*exact, x, w)), 1e-2);
    const auto f32 = DeviceMat::take(backend::make_cuda_backend(Precision::f32, {.e4m3_activations = true}));
    EXPECT_LE(
        relative_error(project(*f32, x, w), project(*backend::make_reference_backend(Precision::f32), x, w)),
        1e-5);
    const auto generic = DeviceMat::take(
        backend::make_cuda_backend(Precision::bf16, {.hopper_kernels = false, .e4m3_activations = true}));
    EXPECT_LE(relative_error(project(*generic, x, w), project(*exact, x, w)), 8e-3);
}

}  // namespace
}  // namespace dgemma::testing
