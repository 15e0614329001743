// Operations of many rows, which go in blocks through weights kept as tiles: each row gets the bits that it
// gets alone, and those of the operations that a fused one stands for.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/plain_products.h"
#include "backend/random_data.h"

namespace dgemma::testing {
namespace {

using backend::Precision;

struct Kind {
    std::string isa;
    Precision precision;
};

constexpr std::int64_t kHidden = 96;  // of the rows
constexpr std::int64_t kMany = 389;   // more than two threads' blocks, and no multiple of anything

class Blocks : public ::testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        plain = backend::make_plain_backend(GetParam().precision, 2, GetParam().isa);
        reference = backend::make_reference_backend(
            GetParam().precision == Precision::mixed ? Precision::f32 : GetParam().precision);
    }
    std::vector<float> activations(std::int64_t n) {
        std::vector<float> x = data.floats(n);
        if (GetParam().precision == Precision::bf16) {
            for (float& v : x) v = round_bf16(v);
        }
        return x;
    }
    // What rounding costs in all: of operands to bf16, of results to it, of sums.
    [[nodiscard]] double bound() const {
        return GetParam().precision == Precision::mixed  ? 1e-2
               : GetParam().precision == Precision::bf16 ? 4e-3
                                                         : 4e-6;
    }

    // f(backend, first, rows) -> values of these rows: all at once, against a few at a time, bit by bit, and
    // against the oracle.
    template <class F>
    void same_in_blocks(const char* what, F f) {
        const std::vector<float> many = f(*plain, 0, kMany);
        std::vector<float> few;
        for (std::int64_t r = 0; r < kMany; r += 13) {
            const std::vector<float> some = f(*plain, r, std::min<std::int64_t>(13, kMany - r));
            few.insert(few.end(), some.begin(), some.end());
        }
        expect_same_bits(many, few, what);
        EXPECT_LE(relative_error(many, f(*reference, 0, kMany)), bound()) << what;
    }
    static void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
        ASSERT_EQ(a.size(), b.size()) << what;
        std::size_t differ = 0;
        for (std::size_t i = 0; i < a.size(); ++i)
            differ += std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]) ? 1 : 0;
        EXPECT_EQ(differ, 0u) << what;
    }
    static std::vector<float> part(const std::vector<float>& x, std::int64_t cols, std::int64_t first,
                                   std::int64_t rows) {
        return {x.begin() + first * cols, x.begin() + (first + rows) * cols};
    }
    static std::unique_ptr<backend::Weight> weight(backend::Backend& b, const HostTensor& t) {
        return DeviceMat::take(b.prepare(t.view));
    }
    HostTensor matrix(std::int64_t outs, std::int64_t ins) {
        return {data.floats(outs * ins, 0.1f), Dtype::bf16, {outs, ins}, true};
    }
    HostTensor vector(std::int64_t n) { return {data.floats(n, 0.2f, 1), Dtype::f32, {n}}; }

    RandomData data{29};
    std::unique_ptr<backend::Backend> plain, reference;
};

TEST_P(Blocks, ProjectAndGatedMlp) {
    const std::vector<float> x = activations(kMany * kHidden);
    const HostTensor w = matrix(75, kHidden), gate = matrix(80, kHidden), up = matrix(80, kHidden),
                     down = matrix(kHidden, 80);
    same_in_blocks("project", [&](backend::Backend& b, std::int64_t first, std::int64_t rows) {
        const DeviceMat in(b, rows, kHidden, part(x, kHidden, first, rows)), out(b, rows, 75);
        b.project(in.mat, *weight(b, w), out.mat);
        return out.values();
    });
    same_in_blocks("gated_mlp", [&](backend::Backend& b, std::int64_t first, std::int64_t rows) {
        const DeviceMat in(b, rows, kHidden, part(x, kHidden, first, rows)), out(b, rows, kHidden);
        b.gated_mlp(in.mat, *weight(b, gate), *weight(b, up), *weight(b, down), out.mat);
        return out.values();
    });
}

TEST_P(Blocks, RouterAndExperts) {
    constexpr std::int64_t experts = 5, width = 32, k = 2;
    const std::vector<float> h = activations(kMany * kHidden);
    const HostTensor scale = vector(kHidden), each = vector(experts),
                     proj(data.floats(experts * kHidden, 0.5f), Dtype::bf16, {experts, kHidden}),
                     gate_up(data.floats(experts * 2 * width * kHidden, 0.1f), Dtype::bf16,
                             {experts, 2 * width, kHidden}),
                     down(data.floats(experts * kHidden * width, 0.1f), Dtype::bf16,
                          {experts, kHidden, width});
    same_in_blocks("router and experts", [&](backend::Backend& b, std::int64_t first, std::int64_t rows) {
        const DeviceMat in(b, rows, kHidden, part(h, kHidden, first, rows)), out(b, rows, kHidden);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * k), -1);
        std::vector<float> weights(ids.size(), std::nanf("")), p(static_cast<std::size_t>(rows * experts));
        const backend::Routing routing{
            {ids.data(), rows, k}, {weights.data(), rows, k}, {p.data(), rows, experts}};
        const auto s = weight(b, scale), r = weight(b, proj), e = weight(b, each);
        b.route(in.mat, {s.get(), r.get(), e.get(), 0.1f, 1e-6f}, routing);
        b.experts(in.mat, routing, *weight(b, gate_up), *weight(b, down), out.mat);
        // Row by row, so that pieces can be put together.
        std::vector<float> all, y = out.values();
        for (std::int64_t i = 0; i < rows; ++i) {
            all.insert(all.end(), y.begin() + i * kHidden, y.begin() + (i + 1) * kHidden);
            all.insert(all.end(), p.begin() + i * experts, p.begin() + (i + 1) * experts);
            all.insert(all.end(), weights.begin() + i * k, weights.begin() + (i + 1) * k);
            all.insert(all.end(), ids.begin() + i * k, ids.begin() + (i + 1) * k);
        }
        return all;
    });
}

// Two canvases: a block never has rows of both. Logits and statistics.
TEST_P(Blocks, Head) {
    constexpr std::int64_t vocab = 1037, split = 151;
    const std::vector<float> x = activations(kMany * kHidden);
    const HostTensor table(data.floats(vocab * kHidden, 0.3f), Dtype::bf16, {vocab, kHidden});
    same_in_blocks("head", [&](backend::Backend& b, std::int64_t first, std::int64_t rows) {
        const DeviceMat in(b, rows, kHidden, part(x, kHidden, first, rows));
        const auto w = weight(b, table);
        const std::int64_t count = std::clamp<std::int64_t>(split - first, 0, rows);
        auto one = DeviceMat::take(b.make_logits(std::max<std::int64_t>(count, 1), vocab)),
             two = DeviceMat::take(b.make_logits(std::max<std::int64_t>(rows - count, 1), vocab));
        std::vector<backend::HeadArgs::Canvas> canvases;
        if (count > 0) canvases.push_back({0, count, 0.4f, one.get()});
        if (count < rows) canvases.push_back({count, rows - count, 0.8f, two.get()});
        b.head({in.mat, w.get(), 30.0f, canvases});
        std::vector<float> all;
        for (const backend::HeadArgs::Canvas& c : canvases) {
            for (int r = 0; r < c.rows; ++r) {
                const RowStats& s = c.logits->stats()[static_cast<std::size_t>(r)];
                const std::span<const float> z = c.logits->row(r);
                all.insert(all.end(), z.begin(), z.end());
                all.insert(all.end(), {s.max, s.log_sum_exp, s.entropy, s.finite ? 1.0f : 0.0f});
                if (GetParam().precision == Precision::f32) all.push_back(static_cast<float>(s.argmax));
            }
        }
        return all;
    });
}

TEST_P(Blocks, SoftEmbedding) {
    constexpr std::int64_t vocab = 1038;
    const std::vector<float> zt = data.floats(kMany * vocab, 2);
    const HostTensor table(data.floats(vocab * kHidden, 0.3f), Dtype::bf16, {vocab, kHidden}, true);
    same_in_blocks("soft embedding", [&](backend::Backend& b, std::int64_t first, std::int64_t rows) {
        auto logits = DeviceMat::take(b.make_logits(rows, vocab));
        b.set_logits(*logits, part(zt, vocab, first, rows));
        const DeviceMat out(b, rows, kHidden);
        b.soft_embed(std::array{logits.get()}, *weight(b, table), 9.8f, out.mat);
        return out.values();
    });
}

// A table's columns are interleaved once for a pass; what lies at its place after the pass is read anew.
TEST_P(Blocks, ColumnsAreKeptForOnePass) {
    constexpr std::int64_t vocab = 64, rows = 40;
    const std::vector<float> zt = data.floats(rows * vocab, 2);
    std::vector<std::uint16_t> table(static_cast<std::size_t>(vocab * kHidden));
    const auto fill = [&] {
        const std::vector<float> values = data.floats(vocab * kHidden);
        for (std::size_t i = 0; i < table.size(); ++i) table[i] = f32_to_bf16(values[i]);
    };
    const auto embedded = [&](backend::Backend& b) {
        const auto w = DeviceMat::take(
            b.prepare({reinterpret_cast<const std::byte*>(table.data()), Dtype::bf16, {vocab, kHidden}}));
        auto logits = DeviceMat::take(b.make_logits(rows, vocab));
        b.set_logits(*logits, zt);
        const DeviceMat out(b, rows, kHidden);
        b.soft_embed(std::array{logits.get()}, *w, 1.0f, out.mat);
        return out.values();
    };
    for (const bool passes : {false, true}) {
        for (int round = 0; round < 2; ++round) {
            fill();
            if (passes) {
                EXPECT_TRUE(plain->begin_pass({.rows = rows, .numbers = {}, .segments = {}, .canvases = {}}));
            }
            const std::vector<float> first = embedded(*plain);
            expect_same_bits(first, embedded(*plain), "again");
            EXPECT_LE(relative_error(first, embedded(*reference)), bound());
            if (passes) {
                EXPECT_TRUE(plain->end_pass());
            }
        }
    }
}

// Fused operations against those they stand for, with keys that are values too and with values of their own.
TEST_P(Blocks, AttentionInputsAreProjectionsAndNorms) {
    constexpr std::int64_t d = 16, heads = 12, kv = 2;  // more heads than are normed at a time
    std::vector<std::int32_t> positions(static_cast<std::size_t>(kMany));
    for (std::size_t i = 0; i < positions.size(); ++i)
        positions[i] = static_cast<std::int32_t>(i % 2 == 0 ? i : 131071 - i);
    const std::vector<float> x = activations(kMany * kHidden);
    const HostTensor q = matrix(heads * d, kHidden), k = matrix(kv * d, kHidden), v = matrix(kv * d, kHidden),
                     q_norm = vector(d), k_norm = vector(d);
    // More kinds of layers than are remembered, and the first one again.
    std::vector<std::vector<float>> turns(7);
    for (std::vector<float>& of_layer : turns) of_layer = data.floats(d / 2, 0.5f);
    turns.back() = turns.front();
    for (std::size_t i = 0; i < turns.size(); ++i) {
        const HostTensor frequencies(turns[i], Dtype::f32, {d / 2});
        const bool own_values = i % 2 == 0;
        const auto run = [&](std::int64_t first, std::int64_t rows, bool fused) {
            backend::Backend& b = *plain;
            const DeviceMat in(b, rows, kHidden, part(x, kHidden, first, rows)), oq(b, rows, heads * d),
                ok(b, rows, kv * d), ov(b, rows, kv * d);
            const auto wq = weight(b, q), wk = weight(b, k), wv = weight(b, v), nq = weight(b, q_norm),
                       nk = weight(b, k_norm), f = weight(b, frequencies);
            const backend::AttentionInputs args{
                in.mat,
                wq.get(),
                wk.get(),
                own_values ? wv.get() : nullptr,
                nq.get(),
                nk.get(),
                f.get(),
                std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
                static_cast<int>(d),
                1e-6f,
                oq.mat,
                ok.mat,
                ov.mat};
            fused ? b.attention_inputs(args) : b.Backend::attention_inputs(args);
            std::vector<float> all;
            for (std::int64_t r = 0; r < rows; ++r) {
                for (const auto& [out, cols] : {std::pair{&oq, heads * d}, {&ok, kv * d}, {&ov, kv * d}}) {
                    const std::vector<float> values = part(out->values(), cols, r, 1);
                    all.insert(all.end(), values.begin(), values.end());
                }
            }
            return all;
        };
        const std::vector<float> many = run(0, 61, true);
        expect_same_bits(many, run(0, 61, false), "a block");
        std::vector<float> few = run(0, 20, true);
        const std::vector<float> rest = run(20, 41, true);
        few.insert(few.end(), rest.begin(), rest.end());
        expect_same_bits(many, few, "in two");
    }
}

TEST_P(Blocks, EndsOfLayersAreNormsAndSums) {
    constexpr std::int64_t n = 100;
    for (const std::int64_t rows : {1, 9, 131}) {
        const HostTensor norm = vector(n), second = vector(n), third = vector(n), next = vector(n),
                         scalar({0.7f}, Dtype::f32, {1});
        std::vector<float> broken = activations(rows * n);
        broken[static_cast<std::size_t>(rows / 2 * n + 3)] = std::numeric_limits<float>::infinity();
        const std::vector<float> a = activations(rows * n), c = activations(rows * n);
        const auto run = [&](bool fused) {
            backend::Backend& b = *plain;
            const auto w1 = weight(b, norm), w2 = weight(b, second), w3 = weight(b, third),
                       w4 = weight(b, next), s = weight(b, scalar);
            const DeviceMat branch(b, rows, n, a), h(b, rows, n, broken), dense(b, rows, n),
                experts(b, rows, n);
            const backend::AfterAttention after{branch.mat, w1.get(),  w2.get(),    w3.get(), 1e-6f,
                                                h.mat,      dense.mat, experts.mat, nullptr};
            fused ? b.after_attention(after) : b.Backend::after_attention(after);
            std::vector<float> all = h.values();
            for (const DeviceMat* m : {&dense, &experts}) {
                const std::vector<float> v = m->values();
                all.insert(all.end(), v.begin(), v.end());
            }
            const DeviceMat d(b, rows, n, a), e(b, rows, n, c), out(b, rows, n), normed(b, rows, n);
            EXPECT_TRUE(b.begin_pass({.rows = rows, .numbers = {}, .segments = {}, .canvases = {}}));
            const backend::LayerEnd end{h.mat,    d.mat,   e.mat, w1.get(), w2.get(),
                                        w3.get(), s.get(), 1e-6f, out.mat};
            fused ? b.finish_layer(end, 5, w4.get(), normed.mat)
                  : b.Backend::finish_layer(end, 5, w4.get(), normed.mat);
            for (const DeviceMat* m : {&out, &normed}) {
                const std::vector<float> v = m->values();
                all.insert(all.end(), v.begin(), v.end());
            }
            const std::span<const std::int32_t> marks = b.end_pass().value();
            for (const std::int32_t mark : marks) all.push_back(static_cast<float>(mark));
            return all;
        };
        const std::vector<float> fused = run(true);
        expect_same_bits(fused, run(false), "end of a layer");
        EXPECT_EQ(fused[fused.size() - static_cast<std::size_t>(rows - rows / 2)], 5.0f);
        EXPECT_EQ(std::count(fused.end() - rows, fused.end(), -1.0f), rows - 1);
    }
}

std::vector<Kind> kinds() {
    std::vector<Kind> out;
    for (const backend::cpu::InstructionSet& set : backend::cpu::instruction_sets()) {
        for (const Precision precision : {Precision::mixed, Precision::f32, Precision::bf16})
            out.push_back({std::string(set.name), precision});
    }
    return out;
}
INSTANTIATE_TEST_SUITE_P(Sets, Blocks, ::testing::ValuesIn(kinds()), [](const auto& kind) {
    return kind.param.isa + (kind.param.precision == Precision::mixed  ? "_mixed"
                             : kind.param.precision == Precision::bf16 ? "_bf16"
                                                                       : "_f32");
});

// When blocks are taken: enough rows for every thread, and weights that fit the shared cache as tiles or,
// where they are expanded to f32 by each block, next to nothing.
TEST(BlocksAreTaken, FromSomeRowsOnForWeightsThatFit) {
    using namespace backend::cpu;
    const InstructionSet* set = instruction_set_named({});
    ThreadPool pool(2);
    const Products mixed({set->plain, set->dots}, pool), plain({set->plain, nullptr}, pool);
    const auto of = [](Shape shape) {
        WeightView w;
        w.shape = std::move(shape);
        return w;
    };
    const WeightView small = of({256, 64}), larger = of({257, 64}), fits = of({2, 4096, 256}),
                     too_large = of({2, 4096, 258});
    const auto taken = [](const Products& products, std::int64_t rows, const WeightView& w) {
        const WeightView* const one = &w;
        return products.in_blocks(rows, std::span(&one, 1));
    };
    EXPECT_FALSE(taken(plain, 31, small));
    EXPECT_TRUE(taken(plain, 32, small));
    EXPECT_FALSE(taken(plain, 4096, larger));
    if (mixed.operand_for(fits) == Operand::f32) GTEST_SKIP() << "skipped: no dot products of bf16 here";
    EXPECT_FALSE(taken(mixed, 31, fits));
    EXPECT_TRUE(taken(mixed, 32, fits));
    EXPECT_FALSE(taken(mixed, 4096, too_large));
    EXPECT_FALSE(mixed.in_blocks_of_columns(31, fits));
    EXPECT_TRUE(mixed.in_blocks_of_columns(32, of({8192, 256})));
    EXPECT_FALSE(mixed.in_blocks_of_columns(32, of({8194, 256})));
    EXPECT_FALSE(mixed.in_blocks_of_columns(32, of({8191, 256})));
    EXPECT_FALSE(mixed.in_blocks_of_columns(32, of({8192, 250})));
    const WeightView* const both[] = {&fits, &small};
    EXPECT_FALSE(mixed.in_blocks(4096, both));
}

}  // namespace
}  // namespace dgemma::testing
