// The kernels of one architecture at the real model's shapes, with weights made on the device, against the
// generic kernels, which the oracle has judged; and that a row's bits depend neither on the number of rows
// nor on its place among them.
#include <algorithm>
#include <array>
#include <functional>

#include <gtest/gtest.h>

#include "cuda/device.h"

namespace dgemma::testing {
namespace {

using backend::Precision;
using backend::Weight;

constexpr std::int64_t hidden = 2816, vocab = 262144, experts = 128, width = 704, chosen = 8;

class Shapes : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto devices = backend::cuda_devices();
        for (const auto& d : devices.value()) {
            if (d.index == 0 && d.free_bytes < (std::size_t{12} << 30))
                GTEST_SKIP() << "skipped: needs 12 GiB of free device memory";
        }
    }
    static std::unique_ptr<Weight> random(backend::Backend& b, const Shape& shape, std::uint64_t seed,
                                          float scale = 0, float mean = 0) {
        if (scale == 0) scale = 1.0f / std::sqrt(static_cast<float>(shape.back()));
        return DeviceMat::take(make_random_cuda_weight(b, shape, Dtype::bf16, scale, mean, seed));
    }
    std::vector<float> activations(std::int64_t n) {
        std::vector<float> x = data.floats(n);
        for (float& v : x) v = round_bf16(v);
        return x;
    }
    // f(backend, rows of x) -> rows of out, on both families; then on the first rows and on one row in the
    // middle alone.
    void judge(const std::function<std::vector<float>(backend::Backend&, const std::vector<float>&,
                                                      std::int64_t)>& f,
               std::int64_t rows, std::int64_t ins, double bound, const std::string& what) {
        const std::vector<float> x = activations(rows * ins);
        const std::vector<float> got = f(*hopper, x, rows);
        EXPECT_LE(relative_error(got, f(*generic, x, rows)), bound) << what;
        const auto outs = static_cast<std::int64_t>(got.size()) / rows;
        for (const auto& [first, count] :
             {std::pair<std::int64_t, std::int64_t>{0, 5}, {rows / 2, 1}, {3, rows - 7}}) {
            const std::vector<float> part(x.begin() + first * ins, x.begin() + (first + count) * ins);
            const std::vector<float> y = f(*hopper, part, count);
            ASSERT_TRUE(std::equal(y.begin(), y.end(), got.begin() + first * outs))
                << what << ": rows " << first << " to " << first + count << " alone give other bits";
        }
    }

    RandomData data{static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + 2};
    std::unique_ptr<backend::Backend> hopper = make_device({Precision::bf16, true}),
                                      generic = make_device({Precision::bf16, false});
};

TEST_F(Shapes, Projections) {
    std::uint64_t seed = 1;
    for (const auto& [ins, outs] : {std::pair<std::int64_t, std::int64_t>{hidden, 4096},
                                    {hidden, 2048},
                                    {hidden, 8192},
                                    {hidden, 1024},
                                    {4096, hidden},
                                    {8192, hidden},
                                    {2112, hidden}}) {
        ++seed;
        for (const std::int64_t rows : {256, 1300}) {
            judge(
                [&, ins = ins, outs = outs](backend::Backend& b, const std::vector<float>& x,
                                            std::int64_t n) {
                    const DeviceMat in(b, n, ins, x), out(b, n, outs);
                    b.project(in.mat, *random(b, {outs, ins}, seed), out.mat);
                    return out.values();
                },
                rows, ins, 1e-3, "project " + std::to_string(ins) + "x" + std::to_string(outs));
        }
    }
}

TEST_F(Shapes, GatedMlp) {
    for (const std::int64_t rows : {256, 1300}) {
        judge(
            [&](backend::Backend& b, const std::vector<float>& x, std::int64_t n) {
                const DeviceMat in(b, n, hidden, x), out(b, n, hidden);
                b.gated_mlp(in.mat, *random(b, {2112, hidden}, 5), *random(b, {2112, hidden}, 6),
                            *random(b, {hidden, 2112}, 7), out.mat);
                return out.values();
            },
            rows, hidden, 2e-3, "gated_mlp");
    }
}

TEST_F(Shapes, RouterAndExperts) {
    // Weights once for both, since one layer has 1.5 GB; the two backends share a device.
    const auto scale = random(*hopper, {hidden}, 1, 0.1f, 1), each = random(*hopper, {experts}, 2, 0.1f, 1);
    const auto proj = random(*hopper, {experts, hidden}, 3, 1.0f);
    const auto gate_up = random(*hopper, {experts, 2 * width, hidden}, 4),
               down = random(*hopper, {experts, hidden, width}, 5);
    for (const std::int64_t rows : {256, 1100}) {
        judge(
            [&](backend::Backend& b, const std::vector<float>& x, std::int64_t n) {
                const DeviceMat in(b, n, hidden, x), out(b, n, hidden);
                const WideMat ids(b, n, chosen), weights(b, n, chosen);
                const backend::Routing routing{ids.mat, weights.mat, {}};
                b.route(in.mat, {scale.get(), proj.get(), each.get(), 1.0f / std::sqrt(2816.0f), 1e-6f},
                        routing);
                b.experts(in.mat, routing, *gate_up, *down, out.mat);
                if (n == rows) {
                    std::vector<int> used(experts);
                    for (const std::int32_t id : ids.values<std::int32_t>())
                        ++used[static_cast<std::size_t>(id)];
                    EXPECT_GE(std::count_if(used.begin(), used.end(), [](int u) { return u > 0; }), 120);
                }
                return out.values();
            },
            // Now and then a row's eighth and ninth expert change places: the sum of its router differs by a
            // bit.
            rows, hidden, 2e-2, "experts");
    }
}

TEST_F(Shapes, HeadAndSoftEmbedding) {
    const auto table = random(*hopper, {vocab, hidden}, 9);
    const std::int64_t rows = 256;
    std::vector<std::vector<RowStats>> stats;
    judge(
        [&](backend::Backend& b, const std::vector<float>& x, std::int64_t n) {
            const DeviceMat in(b, n, hidden, x), out(b, n, hidden);
            auto logits = DeviceMat::take(b.make_logits(n, vocab));
            const backend::HeadArgs::Canvas canvas{0, n, 0.5f, logits.get()};
            b.head({in.mat, table.get(), 30.0f, std::span(&canvas, 1)});
            stats.emplace_back(logits->stats().begin(), logits->stats().end());
            b.soft_embed(std::array{logits.get()}, *table, 53.0f, out.mat);
            return out.values();
        },
        rows, hidden, 5e-3, "soft embedding");
    int other_argmax = 0;
    for (std::size_t r = 0; r < stats[0].size(); ++r) {
        other_argmax += stats[0][r].argmax != stats[1][r].argmax;
        EXPECT_NEAR(stats[0][r].max, stats[1][r].max, 0.07f);
        EXPECT_NEAR(stats[0][r].log_sum_exp, stats[1][r].log_sum_exp, 2e-2f);
        EXPECT_NEAR(stats[0][r].entropy, stats[1][r].entropy, 2e-2f);
    }
    EXPECT_LE(other_argmax, 5);
}

}  // namespace
}  // namespace dgemma::testing
