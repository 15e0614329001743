// Every operation of the plain backend against the scalar oracle: the model's sizes and awkward ones,
// poisoned outputs, each table of kernels that this machine can run.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/random_data.h"

namespace dgemma::testing {
namespace {

using backend::Mat;
using backend::Precision;

// f32 sums of n products of order one, in another order than the oracle's: about sqrt(n) ulps, and n at the
// very most.
constexpr double kF32 = 2e-6;
// One differing rounding to bf16 is 2^-9 of its value, and few of them differ.
constexpr double kBf16 = 2e-3;

struct Kind {
    Precision precision;
    std::string isa;
};

class Plain : public ::testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        plain = backend::make_plain_backend(GetParam().precision, 2, GetParam().isa);
        reference = backend::make_reference_backend(GetParam().precision);
    }
    [[nodiscard]] double bound() const { return GetParam().precision == Precision::bf16 ? kBf16 : kF32; }
    // Activations are on the bf16 grid where the profile rounds.
    std::vector<float> activations(std::int64_t n, float scale = 1) {
        std::vector<float> x = data.floats(n, scale);
        if (GetParam().precision == Precision::bf16) {
            for (float& v : x) v = round_bf16(v);
        }
        return x;
    }

    // Runs `f(backend)` -> vector on both and compares, within so many times the bound.
    template <class F>
    void same(F f, const std::string& what, double times = 1) {
        EXPECT_LE(relative_error(f(*plain), f(*reference)), times * bound()) << what;
    }

    RandomData data{17};
    std::unique_ptr<backend::Backend> plain, reference;
};

std::unique_ptr<backend::Weight> weight(backend::Backend& b, const HostTensor& t) {
    return DeviceMat::take(b.prepare(t.view));
}

TEST_P(Plain, Project) {
    for (const std::int64_t rows : {1, 3, 16, 37}) {
        for (const auto& [ins, outs] : {std::pair<std::int64_t, std::int64_t>{64, 33},
                                        {192, 7},
                                        {704, 2816},
                                        {2112, 100},
                                        {2816, 1408}}) {
            const std::vector<float> x = activations(rows * ins);
            const HostTensor w(data.floats(outs * ins, 0.05f), rows % 2 == 0 ? Dtype::bf16 : Dtype::f32,
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

TEST_P(Plain, GatedMlp) {
    for (const auto& [rows, hidden, width] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{5, 64, 96}, {13, 256, 448}, {2, 2816, 2112}}) {
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
            "gated_mlp");
    }
}

TEST_P(Plain, RouterAndExperts) {
    for (const auto& [rows, hidden, experts, width, k] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>{1, 64, 8, 32, 2},
          {29, 64, 16, 64, 4},
          {3, 2816, 12, 704, 8}}) {
        const std::vector<float> h = activations(rows * hidden);
        const HostTensor scale(data.floats(hidden, 0.1f, 1), Dtype::f32, {hidden});
        const HostTensor proj(data.floats(experts * hidden, 0.5f), Dtype::bf16, {experts, hidden});
        const HostTensor per_expert(data.floats(experts, 0.1f, 1), Dtype::f32, {experts});
        const HostTensor gate_up(data.floats(experts * 2 * width * hidden, 0.06f), Dtype::bf16,
                                 {experts, 2 * width, hidden});
        const HostTensor down(data.floats(experts * width * hidden, 0.06f), Dtype::bf16,
                              {experts, hidden, width});
        std::vector<std::vector<std::int32_t>> chosen;
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, rows, hidden, h), out(b, rows, hidden);
                std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * k), -1);
                std::vector<float> weights(ids.size()),
                    probabilities(static_cast<std::size_t>(rows * experts));
                const auto s = weight(b, scale), p = weight(b, proj), e = weight(b, per_expert);
                const backend::Routing routing{
                    {ids.data(), rows, k}, {weights.data(), rows, k}, {probabilities.data(), rows, experts}};
                b.route(in.mat,
                        {s.get(), p.get(), e.get(), 1.0f / std::sqrt(static_cast<float>(hidden)), 1e-6f},
                        routing);
                chosen.push_back(ids);
                b.experts(in.mat, routing, *weight(b, gate_up), *weight(b, down), out.mat);
                std::vector<float> all = out.values();
                all.insert(all.end(), probabilities.begin(), probabilities.end());
                return all;
            },
            "experts");
        EXPECT_EQ(chosen[0], chosen[1]);
    }
}

TEST_P(Plain, NormsAndLayerEnd) {
    for (const std::int64_t hidden : {64, 100, 2816}) {
        const std::int64_t rows = 7;
        const std::vector<float> a = activations(rows * hidden, 3), c = activations(rows * hidden),
                                 d = activations(rows * hidden);
        const HostTensor w(data.floats(hidden, 0.2f, 1), Dtype::f32, {hidden}),
            w2(data.floats(hidden, 0.2f, 1), Dtype::bf16, {hidden});
        const HostTensor scalar({0.7f}, Dtype::f32, {1});
        same(
            [&](backend::Backend& b) {
                const DeviceMat x(b, rows, hidden, a), y(b, rows, hidden, c), z(b, rows, hidden, d),
                    out(b, rows, hidden);
                b.rms_norm(x.mat, weight(b, w).get(), 1e-6f, out.mat);
                std::vector<float> all = out.values();
                b.add_then_norm(x.mat, y.mat, 1e-6f, out.mat);
                const auto add = [&] {
                    const auto v = out.values();
                    all.insert(all.end(), v.begin(), v.end());
                };
                add();
                b.add_then_norm(x.mat, {}, 1e-6f, out.mat);
                add();
                const DeviceMat y2(b, rows, hidden, c);
                b.norm_then_add(y2.mat, *weight(b, w2), 1e-6f, x.mat, out.mat);
                add();
                const auto n1 = weight(b, w), n2 = weight(b, w2), s = weight(b, scalar);
                b.end_layer({x.mat, y.mat, z.mat, n1.get(), n2.get(), n1.get(), s.get(), 1e-6f, out.mat});
                add();
                return all;
            },
            "norms " + std::to_string(hidden));
    }
}

TEST_P(Plain, HeadsAreNormedAndRotated) {
    for (const int d : {16, 64, 256}) {
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

// Vocabulary tails, two canvases of different temperature, and the soft embedding of what the head wrote.
TEST_P(Plain, HeadStatisticsAndSoftEmbedding) {
    for (const std::int64_t vocab : {37, 512, 2049}) {
        const std::int64_t hidden = 96, rows = 11;
        const std::vector<float> x = activations(rows * hidden);
        const HostTensor table(data.floats(vocab * hidden, 0.3f), Dtype::bf16, {vocab, hidden});
        std::vector<std::vector<RowStats>> stats;
        same(
            [&](backend::Backend& b) {
                const DeviceMat in(b, rows, hidden, x), out(b, 4, hidden);
                const auto w = weight(b, table);
                auto first = DeviceMat::take(b.make_logits(4, vocab)),
                     second = DeviceMat::take(b.make_logits(7, vocab));
                const backend::HeadArgs::Canvas canvases[] = {{0, 4, 0.4f, first.get()},
                                                              {4, 7, 0.8f, second.get()}};
                b.head({in.mat, w.get(), 30.0f, canvases});
                std::vector<float> all;
                auto& kept = stats.emplace_back(first->stats().begin(), first->stats().end());
                kept.insert(kept.end(), second->stats().begin(), second->stats().end());
                for (int r = 0; r < 7; ++r)
                    all.insert(all.end(), second->row(r).begin(), second->row(r).end());
                b.soft_embed(std::array{first.get()}, *w, 9.8f, out.mat);
                const std::vector<float> soft = out.values();
                all.insert(all.end(), soft.begin(), soft.end());
                return all;
            },
            "head " + std::to_string(vocab));
        for (std::size_t r = 0; r < stats[0].size(); ++r) {
            EXPECT_EQ(stats[0][r].argmax, stats[1][r].argmax);
            const float tolerance = GetParam().precision == Precision::bf16 ? 0.05f : 1e-4f;
            EXPECT_NEAR(stats[0][r].max, stats[1][r].max, tolerance);
            EXPECT_NEAR(stats[0][r].log_sum_exp, stats[1][r].log_sum_exp, tolerance);
            EXPECT_NEAR(stats[0][r].entropy, stats[1][r].entropy, tolerance);
        }
    }
}

// With a cutoff a peaked row is the sum over what is left; a row without a peak is computed in full, to the
// same bits.
TEST_P(Plain, SparseSoftEmbedding) {
    if (GetParam().precision == Precision::bf16)
        GTEST_SKIP() << "skipped: the sum in double below has no rounding points";
    const std::int64_t vocab = 1600, hidden = 96;
    std::vector<float> zt = data.floats(3 * vocab, 0.1f);
    for (std::int64_t i = 0; i < vocab; ++i) {
        zt[static_cast<std::size_t>(i)] =
            i % 97 == 5 ? static_cast<float>(i) / 200 : -15 - static_cast<float>(i % 7);
        zt[static_cast<std::size_t>(2 * vocab + i)] = i == 77 ? 40.0f : zt[static_cast<std::size_t>(i)];
    }
    const std::vector<float> e = data.floats(vocab * hidden, 0.3f);
    const HostTensor table(e, Dtype::f32, {vocab, hidden});
    const auto w = weight(*plain, table);
    auto logits = DeviceMat::take(plain->make_logits(3, vocab));
    const auto run = [&](float cutoff) {
        EXPECT_TRUE(plain->set_soft_cutoff(cutoff));
        plain->set_logits(*logits, zt);
        const DeviceMat out(*plain, 3, hidden);
        plain->soft_embed(std::array{logits.get()}, *w, 1.0f, out.mat);
        return out.values();
    };
    const std::vector<float> whole = run(std::numeric_limits<float>::infinity());
    plain->take_facts();
    const std::vector<float> sparse = run(5.0f);
    const backend::PassFacts facts = plain->take_facts();
    EXPECT_EQ(facts.soft_rows, 3);
    EXPECT_LT(facts.soft_entries, vocab + 20);
    std::vector<double> want(static_cast<std::size_t>(hidden));
    double sum = 0;
    const float top = *std::max_element(zt.begin(), zt.begin() + vocab);
    for (std::int64_t i = 0; i < vocab; ++i) {
        const float z = zt[static_cast<std::size_t>(i)];
        if (z < top - 5) continue;
        sum += std::exp(static_cast<double>(z) - top);
        for (std::int64_t c = 0; c < hidden; ++c)
            want[static_cast<std::size_t>(c)] +=
                std::exp(static_cast<double>(z) - top) * e[static_cast<std::size_t>(i * hidden + c)];
    }
    for (std::int64_t c = 0; c < hidden; ++c) {
        EXPECT_NEAR(sparse[static_cast<std::size_t>(c)], want[static_cast<std::size_t>(c)] / sum, 1e-5);
        EXPECT_EQ(sparse[static_cast<std::size_t>(hidden + c)], whole[static_cast<std::size_t>(hidden + c)]);
        EXPECT_EQ(sparse[static_cast<std::size_t>(2 * hidden + c)],
                  e[static_cast<std::size_t>(77 * hidden + c)]);
    }
}

TEST_P(Plain, TiesGoToTheLowestId) {
    auto logits = DeviceMat::take(plain->make_logits(1, 70));
    const HostTensor table(std::vector<float>(70 * 64, 0.25f), Dtype::f32, {70, 64});
    const DeviceMat x(*plain, 1, 64, std::vector<float>(64, 1.0f));
    const backend::HeadArgs::Canvas canvas{0, 1, 1.0f, logits.get()};
    plain->head({x.mat, weight(*plain, table).get(), 30.0f, std::span(&canvas, 1)});
    EXPECT_EQ(logits->stats()[0].argmax, 0);
    EXPECT_NEAR(logits->stats()[0].entropy, std::log(70.0f), 1e-4f);
}

TEST_P(Plain, BrokenRowsAreMarkedWithTheirFirstStage) {
    for (backend::Backend* b : {plain.get(), reference.get()}) {
        std::vector<float> values(4 * 50, 1.0f);
        const DeviceMat x(*b, 4, 50, values);
        ASSERT_TRUE(b->begin_pass({.rows = 4, .numbers = {}, .segments = {}, .canvases = {}}));
        b->watch(x.mat, 0);
        values[50 + 49] = std::numeric_limits<float>::infinity();
        b->upload(values, x.mat);
        b->watch(x.mat, 1);
        values[3 * 50] = std::numeric_limits<float>::quiet_NaN();
        b->upload(values, x.mat);
        b->watch(x.mat, 2);
        const std::span<const std::int32_t> marks = b->end_pass().value();
        EXPECT_EQ(std::vector<std::int32_t>(marks.begin(), marks.end()),
                  (std::vector<std::int32_t>{-1, 1, -1, 2}));
    }
}

// A NaN in the input of the head, the router or attention stays inside its row and crashes nothing.
TEST_P(Plain, NaNRowsStayRows) {
    for (backend::Backend* b : {plain.get(), reference.get()}) {
        std::vector<float> values = data.floats(3 * 64);
        values[64] = std::numeric_limits<float>::quiet_NaN();
        const DeviceMat x(*b, 3, 64, values);
        const HostTensor table(data.floats(100 * 64), Dtype::f32, {100, 64});
        auto logits = DeviceMat::take(b->make_logits(3, 100));
        const backend::HeadArgs::Canvas canvas{0, 3, 1.0f, logits.get()};
        b->head({x.mat, weight(*b, table).get(), 30.0f, std::span(&canvas, 1)});
        EXPECT_TRUE(logits->stats()[0].finite);
        EXPECT_FALSE(logits->stats()[1].finite);
        EXPECT_TRUE(logits->stats()[2].finite);
        std::vector<std::int32_t> ids(3 * 4, -1);
        std::vector<float> weights(3 * 4);
        const HostTensor scale(std::vector<float>(64, 1.0f), Dtype::f32, {64}),
            each(std::vector<float>(16, 1.0f), Dtype::f32, {16});
        const HostTensor proj(data.floats(16 * 64), Dtype::f32, {16, 64});
        const auto s = weight(*b, scale), p = weight(*b, proj), e = weight(*b, each);
        b->route(x.mat, {s.get(), p.get(), e.get(), 0.125f, 1e-6f},
                 {{ids.data(), 3, 4}, {weights.data(), 3, 4}, {}});
        for (const std::int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 16);
    }
}

// Each table of plain kernels that this machine can run, in both precisions that it alone decides.
std::vector<Kind> kinds() {
    std::vector<Kind> out;
    std::vector<const backend::cpu::PlainKernels*> seen;
    for (const backend::cpu::InstructionSet& set : backend::cpu::instruction_sets()) {
        if (std::find(seen.begin(), seen.end(), set.plain) != seen.end()) continue;
        seen.push_back(set.plain);
        for (const Precision precision : {Precision::f32, Precision::bf16})
            out.push_back({precision, std::string(set.name)});
    }
    return out;
}
std::string name_of_kind(const ::testing::TestParamInfo<Kind>& info) {
    return info.param.isa + (info.param.precision == Precision::bf16 ? "_bf16" : "_f32");
}
INSTANTIATE_TEST_SUITE_P(Tables, Plain, ::testing::ValuesIn(kinds()), name_of_kind);

TEST(InstructionSets, EachIsForcedByItsName) {
    const std::vector<std::string_view> names = backend::available_isas();
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.front(), "baseline");
    for (const std::string_view name : names) {
        ASSERT_NE(backend::cpu::instruction_set_named(name), nullptr) << name;
        EXPECT_EQ(backend::cpu::instruction_set_named(name)->name, name);
        EXPECT_NE(backend::make_plain_backend(Precision::mixed, 1, name), nullptr) << name;
    }
    EXPECT_EQ(backend::cpu::instruction_set_named({})->name, names.back());
    // Whoever emulates a processor knows what is best on it.
    const char* best = std::getenv("DGEMMA_BEST_ISA");
    if (best != nullptr) {
        EXPECT_EQ(names.back(), best);
    }
    EXPECT_EQ(backend::cpu::instruction_set_named("avx"), nullptr);
    EXPECT_EQ(backend::make_plain_backend(Precision::f32, 1, "avx"), nullptr);
#if defined(__x86_64__)
    EXPECT_EQ(backend::make_plain_backend(Precision::f32, 1, "neon"), nullptr);
#else
    EXPECT_EQ(backend::make_plain_backend(Precision::f32, 1, "avx2"), nullptr);
#endif
}

}  // namespace
}  // namespace dgemma::testing
