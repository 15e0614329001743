// Products of weights and activations in E4M3 on Hopper against the scalar oracle, which quantises
// activations alike.
#include "cuda/e4m3.h"

#include <functional>
#include <tuple>

namespace dgemma::testing {
namespace {

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
    // Banks are kept in E4M3 where a half of their rows is whole boxes.
    for (const Case& c : {Case{1, 128, 64, 4, 2, 0},
                          {29, 128, 64, 16, 4, 0},
                          {150, 384, 128, 16, 4, 2},
                          {70, 128, 64, 130, 8, 3},
                          {300, 256, 128, 6, 4, 1},  // many rows an expert: up to 128 at a time
                          {131, 128, 704, 4, 3, 2},
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
    const E4m3Weight &first = random({4, 2 * 704, hidden}, 0.02f), &second = random({4, hidden, 704}, 0.04f);
    const Choices chosen = choices(rows, 4, 3, 1);
    nearly([&](Backend& b) { return experts(b, x, chosen, *branch(b, first), *branch(b, second)); }, 2e-2,
           "experts");
}

}  // namespace
}  // namespace dgemma::testing
