// Every operation of the CUDA backend against the scalar oracle: the model's sizes and awkward ones, fresh
// random inputs, poisoned outputs, each family of kernels.
#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include <gtest/gtest.h>

#include "cuda/device.h"

namespace dgemma::testing {
namespace {

using backend::Mat;
using backend::Precision;

// f32 sums of n products of order one, in another order than the oracle's.
constexpr double kF32 = 1e-5;
// A differing rounding to bf16 is 2^-9 of its value, and few of them differ.
constexpr double kBf16 = 2e-3;

class Ops : public ::testing::TestWithParam<DeviceKind> {
  protected:
    void SetUp() override {
        device = make_device(GetParam());
        reference = backend::make_reference_backend(GetParam().precision);
    }
    [[nodiscard]] bool bf16() const { return GetParam().precision == Precision::bf16; }
    [[nodiscard]] double bound() const { return bf16() ? kBf16 : kF32; }
    // Activations are on the bf16 grid where the profile rounds.
    std::vector<float> activations(std::int64_t n, float scale = 1, float mean = 0) {
        std::vector<float> x = data.floats(n, scale, mean);
        if (bf16()) {
            for (float& v : x) v = round_bf16(v);
        }
        return x;
    }
    // Runs `f(backend)` -> vector on both and compares; twice on the device, which must not change a bit.
    template <class F>
    void same(F f, const std::string& what, double looser = 1) {
        const std::vector<float> got = f(*device);
        EXPECT_LE(relative_error(got, f(*reference)), looser * bound()) << what;
        EXPECT_EQ(got, f(*device)) << what << ": another run gave other bits";
    }

    RandomData data{static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed())};
    std::unique_ptr<backend::Backend> device, reference;
};

TEST_P(Ops, Project) {
    for (const std::int64_t rows : {1, 3, 37, 130}) {
        for (const auto& [ins, outs] : {std::pair<std::int64_t, std::int64_t>{64, 33},
                                        {96, 40},
                                        {192, 7},
                                        {704, 2816},
                                        {2112, 104},
                                        {2816, 1408},
                                        {4096, 264}}) {
            if (rows > 37 && ins * outs > 1000000) continue;  // the oracle is slow
            const std::vector<float> x = activations(rows * ins);
            const HostTensor w(data.floats(outs * ins, 0.05f), rows == 1 ? Dtype::f32 : Dtype::bf16,
                               {outs, ins}, rows == 3);
            same(
                [&](backend::Backend& b) {
                    const DeviceMat in(b, rows, ins, x), out(b, rows, outs);
                    b.project(in.mat, *weight(b, w), out.mat);
                    return out.values();
                },
                "project " + std::to_string(rows) + "x" + std::to_string(ins) + "x" + std::to_string(outs));
        }
    }
}

TEST_P(Ops, GatedMlp) {
    for (const auto& [rows, hidden, width] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{5, 64, 96},
                                              {130, 256, 448},
                                              {9, 2816, 2112}}) {
        const std::vector<float> x = activations(rows * hidden);
        const HostTensor gate(data.floats(width * hidden, 0.06f), Dtype::bf16, {width, hidden});
        const HostTensor up(data.floats(width * hidden, 0.06f), Dtype::bf16, {width, hidden});
        const HostTensor down(data.floats(width * hidden, 0.06f), Dtype::bf16, {hidden, width});
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, rows, hidden, x), out(b, rows, hidden);
                b.gated_mlp(in.mat, *weight(b, gate), *weight(b, up), *weight(b, down), out.mat);
                return out.values();
            },
            "gated_mlp " + std::to_string(hidden), 2);
    }
}

// From experts without a row to ones with more than one block of them: `common` experts get every row.
TEST_P(Ops, RouterAndExperts) {
    struct Case {
        std::int64_t rows, hidden, experts, width, k, common;
    };
    for (const Case& c : {Case{1, 64, 8, 32, 2, 0},
                          {29, 64, 16, 64, 4, 0},
                          {300, 64, 16, 32, 4, 2},
                          {150, 192, 40, 96, 8, 1},
                          {70, 128, 130, 64, 8, 3},
                          {900, 64, 16, 32, 8, 2},   // pairs ordered by a kernel of their own
                          {8300, 64, 16, 32, 1, 0},  // and by one that needs no masks
                          {5, 2816, 12, 704, 8, 0},
                          {40, 2816, 10, 704, 4, 1}}) {
        const std::string what = "experts " + std::to_string(c.rows) + "x" + std::to_string(c.hidden);
        const std::vector<float> h = activations(c.rows * c.hidden, 1, 0.5f);
        std::vector<float> router = data.floats(c.experts * c.hidden, 0.5f);
        for (std::int64_t i = 0; i < c.common * c.hidden; ++i)
            router[static_cast<std::size_t>(i)] = 1.0f + 0.1f * static_cast<float>(i / c.hidden);
        const HostTensor scale(data.floats(c.hidden, 0.1f, 1), Dtype::f32, {c.hidden});
        const HostTensor proj(router, Dtype::bf16, {c.experts, c.hidden});
        const HostTensor per_expert(data.floats(c.experts, 0.1f, 1), Dtype::f32, {c.experts});
        const HostTensor gate_up(data.floats(c.experts * 2 * c.width * c.hidden, 0.06f), Dtype::bf16,
                                 {c.experts, 2 * c.width, c.hidden});
        const HostTensor down(data.floats(c.experts * c.width * c.hidden, 0.06f), Dtype::bf16,
                              {c.experts, c.hidden, c.width});
        std::vector<std::vector<std::int32_t>> chosen;
        std::vector<std::vector<float>> said;
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, c.rows, c.hidden, h), out(b, c.rows, c.hidden);
                const WideMat ids(b, c.rows, c.k), weights(b, c.rows, c.k), p(b, c.rows, c.experts);
                const auto ws = weight(b, scale), wp = weight(b, proj), we = weight(b, per_expert);
                const backend::Routing routing{ids.mat, weights.mat, p.mat};
                b.route(in.mat,
                        {ws.get(), wp.get(), we.get(), 1.0f / std::sqrt(static_cast<float>(c.hidden)), 1e-6f},
                        routing);
                chosen.push_back(ids.values<std::int32_t>());
                std::vector<float> all = p.values<float>();
                const std::vector<float> shares = weights.values<float>();
                all.insert(all.end(), shares.begin(), shares.end());
                said.push_back(all);
                b.experts(in.mat, routing, *weight(b, gate_up), *weight(b, down), out.mat);
                return out.values();
            },
            what, 3);
        ASSERT_EQ(chosen.size(), 3u);
        EXPECT_EQ(chosen[0], chosen[1]) << what;
        EXPECT_EQ(chosen[0], chosen[2]) << what;
        EXPECT_LE(relative_error(said[0], said[1]), 4 * bound()) << what;
    }
}

// Every row goes to the first expert and to one of the others, of which so many rows each; where experts have
// many rows on average, blocks may work in pairs on up to 320 of them.
TEST_P(Ops, ManyRowsOfSomeExpertsAndNoneOfOthers) {
    struct Case {
        std::vector<int> others;
        std::int64_t hidden;
    };
    // Of 80 rows an expert on average, and of 193.
    for (const auto& [others, hidden] :
         {Case{{0, 1, 15, 161, 16, 17, 111}, 320}, Case{{0, 1, 15, 161, 330, 17, 250}, 384}}) {
        const std::int64_t rows = std::accumulate(others.begin(), others.end(), 0), width = 96, k = 2;
        const std::int64_t experts = static_cast<std::int64_t>(others.size()) + 1;
        std::vector<float> h = activations(rows * hidden, 0.25f),
                           router(static_cast<std::size_t>(experts * hidden));
        std::int64_t row = 0;
        for (std::int64_t e = 0; e < experts; ++e) {
            router[static_cast<std::size_t>(e * hidden + e)] = 1;  // an expert looks at one column
            for (int i = 0; e > 0 && i < others[static_cast<std::size_t>(e - 1)]; ++i, ++row) {
                h[static_cast<std::size_t>(row * hidden)] = 4;
                h[static_cast<std::size_t>(row * hidden + e)] = 3;
            }
        }
        const HostTensor ones(std::vector<float>(static_cast<std::size_t>(hidden), 1.0f), Dtype::f32,
                              {hidden});
        const HostTensor each(std::vector<float>(static_cast<std::size_t>(experts), 1.0f), Dtype::f32,
                              {experts});
        const HostTensor proj(router, Dtype::bf16, {experts, hidden});
        const HostTensor gate_up(data.floats(experts * 2 * width * hidden, 0.06f), Dtype::bf16,
                                 {experts, 2 * width, hidden});
        const HostTensor down(data.floats(experts * width * hidden, 0.06f), Dtype::bf16,
                              {experts, hidden, width});
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, rows, hidden, h), out(b, rows, hidden);
                const WideMat ids(b, rows, k), weights(b, rows, k);
                const auto ws = weight(b, ones), wp = weight(b, proj), we = weight(b, each);
                const backend::Routing routing{ids.mat, weights.mat, {}};
                b.route(in.mat, {ws.get(), wp.get(), we.get(), 1.0f, 1e-6f}, routing);
                std::vector<int> used(static_cast<std::size_t>(experts));
                for (const std::int32_t id : ids.values<std::int32_t>()) ++used[static_cast<std::size_t>(id)];
                EXPECT_EQ(used[0], rows);
                EXPECT_TRUE(std::equal(others.begin(), others.end(), used.begin() + 1));
                b.experts(in.mat, routing, *weight(b, gate_up), *weight(b, down), out.mat);
                return out.values();
            },
            "experts of " + std::to_string(rows) + " rows", 3);
    }
}

TEST_P(Ops, EmbedAndNorms) {
    for (const std::int64_t hidden : {64, 104, 2816}) {
        const std::int64_t rows = 7, vocab = 50;
        const HostTensor table(data.floats(vocab * hidden), Dtype::bf16, {vocab, hidden});
        const std::vector<std::int32_t> ids = {0, 49, 3, 3, 17, 8, 21};
        const std::vector<float> a = activations(rows * hidden, 3), c = activations(rows * hidden),
                                 d = activations(rows * hidden);
        const HostTensor w(data.floats(hidden, 0.2f, 1), Dtype::f32, {hidden}),
            w2(data.floats(hidden, 0.2f, 1), Dtype::bf16, {hidden});
        const HostTensor scalar({0.7f}, Dtype::f32, {1});
        same(
            [&](backend::Backend& b) {
                const DeviceMat x(b, rows, hidden, a), y(b, rows, hidden, c), z(b, rows, hidden, d);
                std::vector<float> all;
                const auto add = [&](const DeviceMat& m) {
                    const std::vector<float> v = m.values();
                    all.insert(all.end(), v.begin(), v.end());
                };
                const auto n1 = weight(b, w), n2 = weight(b, w2), s = weight(b, scalar);
                {
                    const DeviceMat out(b, rows, hidden);
                    b.embed(ids, *weight(b, table), 9.8f, out.mat);
                    add(out);
                }
                {
                    const DeviceMat out(b, rows, hidden);
                    b.rms_norm(x.mat, n1.get(), 1e-6f, out.mat);
                    add(out);
                    b.rms_norm(x.mat, nullptr, 1e-6f, out.mat);
                    add(out);
                }
                {
                    const DeviceMat out(b, rows, hidden);
                    b.add_then_norm(x.mat, y.mat, 1e-6f, out.mat);
                    add(out);
                    b.add_then_norm(x.mat, {}, 1e-6f, out.mat);
                    add(out);
                }
                {
                    const DeviceMat y2(b, rows, hidden, c), out(b, rows, hidden);
                    b.norm_then_add(y2.mat, *n2, 1e-6f, x.mat, out.mat);
                    add(out);
                }
                {
                    const DeviceMat out(b, rows, hidden);
                    b.end_layer({x.mat, y.mat, z.mat, n1.get(), n2.get(), n1.get(), s.get(), 1e-6f, out.mat});
                    add(out);
                }
                {
                    const DeviceMat out(b, rows, hidden), zero(b, rows, hidden);
                    b.copy(x.mat, out.mat);
                    add(out);
                    b.fill_zero(zero.mat);
                    add(zero);
                }
                return all;
            },
            "norms " + std::to_string(hidden));
    }
}

TEST_P(Ops, HeadsAreNormedAndRotated) {
    for (const int d : {16, 48, 64, 256, 512}) {
        const std::int64_t rows = 5, cols = 3 * d;
        const std::vector<float> x = activations(rows * cols);
        std::vector<float> turns(static_cast<std::size_t>(d / 2));
        for (int i = 0; i < d / 4; ++i)
            turns[static_cast<std::size_t>(i)] =
                std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(d));
        const HostTensor frequencies(turns, Dtype::f32, {d / 2});
        const std::vector<std::int32_t> positions = {0, 1, 77, 4095, 131071};
        const HostTensor w(data.floats(d, 0.2f, 1), Dtype::f32, {d});
        same(
            [&](backend::Backend& b) {
                const DeviceMat m(b, rows, cols, x), plain_norm(b, rows, cols, x);
                b.norm_heads(m.mat, d, weight(b, w).get(), 1e-6f, weight(b, frequencies).get(), positions);
                b.norm_heads(plain_norm.mat, d, nullptr, 1e-6f, nullptr, {});
                std::vector<float> all = m.values();
                const std::vector<float> other = plain_norm.values();
                all.insert(all.end(), other.begin(), other.end());
                return all;
            },
            "heads " + std::to_string(d));
    }
}

// Vocabulary tails, two canvases of different temperature, and the soft embedding of what the head wrote; the
// last case is wide enough for the kernels of the head proper.
TEST_P(Ops, HeadStatisticsAndSoftEmbedding) {
    struct Case {
        std::int64_t vocab, hidden, first, second;
    };
    for (const Case& c : {Case{37, 96, 4, 7}, {512, 64, 130, 3}, {2056, 96, 4, 7}, {33000, 64, 2, 131}}) {
        const std::int64_t rows = c.first + c.second;
        const std::vector<float> x = activations(rows * c.hidden);
        const HostTensor table(data.floats(c.vocab * c.hidden, 0.3f), Dtype::bf16, {c.vocab, c.hidden});
        std::vector<std::vector<RowStats>> stats;
        std::vector<std::vector<float>> soft;
        const std::string what = "head " + std::to_string(c.vocab);
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, rows, c.hidden, x), out(b, c.second, c.hidden);
                const auto w = weight(b, table);
                auto first = DeviceMat::take(b.make_logits(c.first, c.vocab)),
                     second = DeviceMat::take(b.make_logits(c.second, c.vocab));
                const backend::HeadArgs::Canvas canvases[] = {{0, c.first, 0.4f, first.get()},
                                                              {c.first, c.second, 0.8f, second.get()}};
                b.head({in.mat, w.get(), 30.0f, canvases});
                std::vector<float> all;
                auto& kept = stats.emplace_back(first->stats().begin(), first->stats().end());
                kept.insert(kept.end(), second->stats().begin(), second->stats().end());
                for (int r = 0; r < std::min<int>(static_cast<int>(c.second), 9); ++r)
                    all.insert(all.end(), second->row(r).begin(), second->row(r).end());
                b.soft_embed(std::array{second.get()}, *w, 9.8f, out.mat);
                soft.push_back(out.values());
                return all;
            },
            what, 3);
        EXPECT_LE(relative_error(soft[0], soft[1]), 5 * bound()) << what;
        EXPECT_EQ(soft[0], soft[2]) << what;
        int other_argmax = 0;
        for (std::size_t r = 0; r < stats[0].size(); ++r) {
            const RowStats &got = stats[0][r], &want = stats[1][r];
            other_argmax += got.argmax != want.argmax;
            EXPECT_TRUE(got.finite);
            const float tolerance = bf16() ? 0.05f : 2e-4f;
            EXPECT_NEAR(got.max, want.max, tolerance) << what;
            EXPECT_NEAR(got.log_sum_exp, want.log_sum_exp, tolerance) << what;
            EXPECT_NEAR(got.entropy, want.entropy, tolerance) << what;
        }
        EXPECT_LE(other_argmax, bf16() ? static_cast<int>(stats[0].size()) / 20 : 0) << what;
    }
}

// Canvases that share a reading of the table, and those that stand alone, give the same bits.
TEST_P(Ops, CanvasesShareTheHead) {
    const std::int64_t vocab = 33000, hidden = 64;
    const HostTensor table(data.floats(vocab * hidden, 0.3f), Dtype::bf16, {vocab, hidden});
    const auto w = weight(*device, table);
    const std::vector<std::int64_t> lengths = {128, 128, 128, 128, 128, 256, 256, 40};
    const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const std::vector<float> x = activations(rows * hidden);
    std::vector<std::unique_ptr<backend::Logits>> all;
    std::vector<backend::Logits*> logits;
    std::vector<backend::HeadArgs::Canvas> canvases;
    std::int64_t first = 0;
    for (const std::int64_t length : lengths) {
        logits.push_back(all.emplace_back(DeviceMat::take(device->make_logits(length, vocab))).get());
        canvases.push_back({first, length, 0.4f + 0.1f * static_cast<float>(logits.size()), logits.back()});
        first += length;
    }
    const DeviceMat in(*device, rows, hidden, x), out(*device, rows, hidden);
    device->head({in.mat, w.get(), 30.0f, canvases});
    device->soft_embed(logits, *w, 9.8f, out.mat);
    const std::vector<float> together = out.values();
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t length = lengths[i];
        const auto begin = static_cast<std::ptrdiff_t>(canvases[i].first_row * hidden);
        const auto end = begin + static_cast<std::ptrdiff_t>(length * hidden);
        const DeviceMat own(*device, length, hidden, {x.begin() + begin, x.begin() + end}),
            soft(*device, length, hidden);
        auto alone = DeviceMat::take(device->make_logits(length, vocab));
        const backend::HeadArgs::Canvas canvas{0, length, canvases[i].temperature, alone.get()};
        device->head({own.mat, w.get(), 30.0f, std::span(&canvas, 1)});
        device->soft_embed(std::array{alone.get()}, *w, 9.8f, soft.mat);
        EXPECT_EQ(soft.values(), std::vector<float>(together.begin() + begin, together.begin() + end)) << i;
        for (const int r : {0, static_cast<int>(length) - 1}) {
            const auto got = all[i]->row(r), want = alone->row(r);
            EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << i << " row " << r;
            const auto at = static_cast<std::size_t>(r);
            EXPECT_EQ(all[i]->stats()[at].argmax, alone->stats()[at].argmax);
            EXPECT_EQ(all[i]->stats()[at].entropy, alone->stats()[at].entropy);
        }
    }
}

// Logits as given, their statistics, and their soft embedding.
TEST_P(Ops, GivenLogits) {
    const std::int64_t vocab = 1000, rows = 5, hidden = 64;
    std::vector<float> zt = data.floats(rows * vocab, 4);
    zt[3 * 1000 + 17] = zt[3 * 1000 + 400] = 60;  // a tie, far above the rest
    const HostTensor table(data.floats(vocab * hidden), Dtype::bf16, {vocab, hidden});
    same(
        [&](backend::Backend& b) {
            auto logits = DeviceMat::take(b.make_logits(rows, vocab));
            b.set_logits(*logits, zt);
            const DeviceMat out(b, rows, hidden);
            b.soft_embed(std::array{logits.get()}, *weight(b, table), 1.0f, out.mat);
            return out.values();
        },
        "given logits", 3);
    auto logits = DeviceMat::take(device->make_logits(rows, vocab));
    device->set_logits(*logits, zt);
    EXPECT_EQ(logits->stats()[3].argmax, 17);
    EXPECT_NEAR(logits->stats()[3].entropy, std::log(2.0f), 1e-3f);
    const auto row = logits->row(2);
    for (int i = 0; i < vocab; ++i) {
        const float want = zt[static_cast<std::size_t>(2 * vocab + i)];
        EXPECT_EQ(row[static_cast<std::size_t>(i)], bf16() ? round_bf16(want) : want);
    }
}

TEST_P(Ops, TiesGoToTheLowestId) {
    auto logits = DeviceMat::take(device->make_logits(1, 70));
    const HostTensor table(std::vector<float>(70 * 64, 0.25f), Dtype::f32, {70, 64});
    const DeviceMat x(*device, 1, 64, std::vector<float>(64, 1.0f));
    const backend::HeadArgs::Canvas canvas{0, 1, 1.0f, logits.get()};
    device->head({x.mat, weight(*device, table).get(), 30.0f, std::span(&canvas, 1)});
    EXPECT_EQ(logits->stats()[0].argmax, 0);
    EXPECT_NEAR(logits->stats()[0].entropy, std::log(70.0f), 1e-4f);
}

TEST_P(Ops, BrokenRowsAreMarkedWithTheirFirstStage) {
    std::vector<float> values(4 * 48, 1.0f);
    const DeviceMat x(*device, 4, 48, values);
    ASSERT_TRUE(device->begin_pass({.rows = 4, .numbers = {}, .segments = {}, .canvases = {}}));
    device->watch(x.mat, 0);
    values[48 + 47] = std::numeric_limits<float>::infinity();
    device->upload(values, x.mat);
    device->watch(x.mat, 1);
    values[3 * 48] = std::numeric_limits<float>::quiet_NaN();
    device->upload(values, x.mat);
    device->watch(x.mat, 2);
    const std::span<const std::int32_t> marks = device->end_pass().value();
    EXPECT_EQ(std::vector<std::int32_t>(marks.begin(), marks.end()),
              (std::vector<std::int32_t>{-1, 1, -1, 2}));
}

// A NaN in the input of the head or the router stays inside its row and crashes nothing.
TEST_P(Ops, NaNRowsStayRows) {
    std::vector<float> values = data.floats(3 * 64);
    values[64] = std::numeric_limits<float>::quiet_NaN();
    const DeviceMat x(*device, 3, 64, values), out(*device, 3, 64);
    const HostTensor table(data.floats(104 * 64), Dtype::bf16, {104, 64});
    auto logits = DeviceMat::take(device->make_logits(3, 104));
    const backend::HeadArgs::Canvas canvas{0, 3, 1.0f, logits.get()};
    device->head({x.mat, weight(*device, table).get(), 30.0f, std::span(&canvas, 1)});
    EXPECT_TRUE(logits->stats()[0].finite);
    EXPECT_FALSE(logits->stats()[1].finite);
    EXPECT_TRUE(logits->stats()[2].finite);
    const WideMat ids(*device, 3, 4), weights(*device, 3, 4);
    const HostTensor scale(std::vector<float>(64, 1.0f), Dtype::f32, {64}),
        each(std::vector<float>(16, 1.0f), Dtype::f32, {16});
    const HostTensor proj(data.floats(16 * 64), Dtype::bf16, {16, 64});
    const HostTensor gate_up(data.floats(16 * 64 * 64, 0.1f), Dtype::bf16, {16, 64, 64});
    const HostTensor down(data.floats(16 * 64 * 32, 0.1f), Dtype::bf16, {16, 64, 32});
    const auto s = weight(*device, scale), p = weight(*device, proj), e = weight(*device, each);
    const backend::Routing routing{ids.mat, weights.mat, {}};
    device->route(x.mat, {s.get(), p.get(), e.get(), 0.125f, 1e-6f}, routing);
    for (const std::int32_t id : ids.values<std::int32_t>()) EXPECT_TRUE(id >= 0 && id < 16);
    device->experts(x.mat, routing, *weight(*device, gate_up), *weight(*device, down), out.mat);
    const std::vector<float> y = out.values();
    for (int c = 0; c < 64; ++c) {
        EXPECT_TRUE(std::isfinite(y[static_cast<std::size_t>(c)]));
        EXPECT_FALSE(std::isfinite(y[static_cast<std::size_t>(64 + c)]));
        EXPECT_TRUE(std::isfinite(y[static_cast<std::size_t>(128 + c)]));
    }
}

std::string name_of_param(const ::testing::TestParamInfo<DeviceKind>& info) {
    return name_of_kind(info.param);
}
INSTANTIATE_TEST_SUITE_P(Cuda, Ops,
                         ::testing::Values(DeviceKind{Precision::f32, true},
                                           DeviceKind{Precision::bf16, true},
                                           DeviceKind{Precision::bf16, false}),
                         name_of_param);

}  // namespace
}  // namespace dgemma::testing
