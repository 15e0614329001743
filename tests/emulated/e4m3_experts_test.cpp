// The experts and the dense MLP in E4M3 on the emulated machine: hidden layers and results against sums in
// their order. Several blocks take items in turns; an expert has no row, some, or more than an item holds.
#include <set>

#include <gtest/gtest.h>

#include "backend/cuda/sm90_e4m3_experts.cu"
#include "emulated/chosen_rows.h"
#include "emulated/operands.h"

namespace dgemma::emulated {
namespace {

struct Mlp {  // matrices of one expert: rows from `gate_row`, `up_row`, `down_row` on
    Codes &gate, &up, &down;
    std::int64_t gate_row, up_row, down_row;
};
struct Results {
    Results(std::int64_t rows, std::int64_t hidden, std::int64_t width)
        : codes(rows * width), scales(rows * backend::cuda::hidden_scales(width)), y(rows * hidden) {}
    [[nodiscard]] backend::cuda::E4m3Target target() { return {codes.data(), scales.data()}; }
    Memory<std::uint8_t> codes;
    Memory<float> scales;
    Memory<std::uint16_t> y;
};

// Of row `row` of x, which became row `at` of the results.
void judge(bool exact, Rows& x, std::int64_t row, Mlp m, std::int64_t hidden, std::int64_t width,
           Results& got, std::int64_t at) {
    std::vector<float> layer;
    for (std::int64_t i = 0; i < width; ++i) {
        double gate = 0, up = 0;
        for (std::int64_t k = 0; k < hidden; ++k) {
            gate += x.value(row, k) * m.gate.value(m.gate_row + i, k);
            up += x.value(row, k) * m.up.value(m.up_row + i, k);
        }
        const float g = round_bf16(static_cast<float>(gate) * x.scales[row] * m.gate.scales[m.gate_row + i]);
        const float u = round_bf16(static_cast<float>(up) * x.scales[row] * m.up.scales[m.up_row + i]);
        layer.push_back(round_bf16(round_bf16(backend::cuda::gelu(g)) * u));
    }
    std::vector<std::uint8_t> codes(layer.size());
    for (std::int64_t i = 0; i < width; i += kE4m3HiddenColumns) {
        const auto first = static_cast<std::size_t>(i),
                   columns = static_cast<std::size_t>(std::min(kE4m3HiddenColumns, width - i));
        const float want =
            quantise_e4m3(std::span(layer).subspan(first, columns), std::span(codes).subspan(first, columns));
        const float scale = got.scales[at * backend::cuda::hidden_scales(width) + i / kE4m3HiddenColumns];
        // A rounding to bf16 of one number in another direction may change the scale and a code, not more.
        ASSERT_NEAR(scale, want, exact ? 0 : 0.02f * want) << "scale " << i;
        for (std::int64_t c = i; c < std::min(width, i + kE4m3HiddenColumns); ++c) {
            const float code = e4m3_to_f32(codes[static_cast<std::size_t>(c)]);
            ASSERT_NEAR(e4m3_to_f32(got.codes[at * width + c]), code, exact ? 0 : 0.15f * std::abs(code) + 1)
                << "column " << c;
        }
    }
    for (std::int64_t o = 0; o < hidden; ++o) {
        double sum = 0, sizes = 0;
        for (std::int64_t i = 0; i < width; ++i) {
            const double product =
                static_cast<double>(e4m3_to_f32(got.codes[at * width + i])) *
                got.scales[at * backend::cuda::hidden_scales(width) + i / kE4m3HiddenColumns] *
                m.down.value(m.down_row + o, i);
            sum += product, sizes += std::abs(product);
        }
        const double scale = m.down.scales[m.down_row + o];
        ASSERT_NEAR(bf16_to_f32(got.y[at * hidden + o]), sum * scale,
                    scale * (0x1p-8 * std::abs(sum) + 1e-5 * sizes))
            << "output " << o;
    }
}

struct Case {
    int blocks;
    std::int64_t rows, hidden, width;
    int experts, k, common;  // the first `common` experts get every row, the last one none
    std::int64_t dense_rows, dense_width;
};

// beside: the router is done at the last moment, and the dense MLP begins without it.
void run(const Case& c, bool exact, bool beside_router = false) {
    SCOPED_TRACE(std::to_string(c.rows) + "x" + std::to_string(c.hidden) + "x" + std::to_string(c.width) +
                 (exact ? " exact" : " random"));
    Numbers numbers(exact);
    const std::int64_t groups = std::max(c.experts, 1), pairs = c.experts > 0 ? c.rows * c.k : 0;
    Rows x(numbers, c.rows, c.hidden), dense_x(numbers, std::max<std::int64_t>(c.dense_rows, 1), c.hidden);
    Codes gate_up(numbers, groups, 2 * c.width, c.hidden), down(numbers, groups, c.hidden, c.width);
    Codes dense_gate(numbers, 1, c.dense_width, c.hidden), dense_up(numbers, 1, c.dense_width, c.hidden),
        dense_down(numbers, 1, c.hidden, c.dense_width);
    std::vector<std::vector<int>> rows_of(static_cast<std::size_t>(c.experts));
    for (int r = 0; r < pairs / std::max(c.k, 1); ++r) {
        std::set<int> chosen;
        for (int e = 0; e < c.common; ++e) chosen.insert(e);
        while (static_cast<int>(chosen.size()) < c.k) chosen.insert(numbers.whole(0, c.experts - 2));
        for (const int e : chosen) rows_of[static_cast<std::size_t>(e)].push_back(r);
    }
    ChosenRows chosen_rows(rows_of);
    Results got(pairs, c.hidden, c.width), dense(c.dense_rows, c.hidden, c.dense_width);
    backend::cuda::E4m3Dense beside;
    if (c.dense_rows > 0) {
        beside = {dense_x.view(),    c.dense_rows,   dense_gate.matrix, dense_up.matrix,
                  dense_down.matrix, dense.target(), dense.y.data()};
    }
    backend::cuda::Context context{c.blocks};
    const bool any = c.experts > 0;
    backend::cuda::sm90_e4m3_experts(context, x.view(), any ? gate_up.matrix : backend::cuda::E4m3Matrix{},
                                     any ? down.matrix : backend::cuda::E4m3Matrix{},
                                     chosen_rows.places(beside_router), got.target(), got.y.data(), beside);
    for (int e = 0; e < c.experts; ++e) {
        const Mlp expert{gate_up, gate_up, down, e * 2 * c.width, e * 2 * c.width + c.width, e * c.hidden};
        for (std::int64_t at = chosen_rows.begin(e); at < chosen_rows.begin(e + 1); ++at) {
            ASSERT_NO_FATAL_FAILURE(
                judge(exact, x, chosen_rows.row_at(at), expert, c.hidden, c.width, got, at))
                << "place " << at;
        }
    }
    for (std::int64_t r = 0; r < c.dense_rows; ++r) {
        ASSERT_NO_FATAL_FAILURE(judge(exact, dense_x, r, {dense_gate, dense_up, dense_down, 0, 0, 0},
                                      c.hidden, c.dense_width, dense, r))
            << "row " << r << " of the dense MLP";
    }
}

TEST(EmulatedSlow, E4m3ExpertsAndDense) {
    for (const bool exact : {true, false}) {
        run({1, 1, 64, 64, 3, 1, 0, 0, 64}, exact);
        run({3, 7, 192, 64, 5, 3, 1, 7, 192}, exact);
        run({3, 7, 192, 64, 5, 3, 1, 7, 192}, exact, true);
        run({5, 40, 128, 192, 5, 3, 1, 90, 320}, exact, true);  // fewer dense items than blocks, and more
        run({2, 40, 128, 192, 5, 3, 1, 90, 320}, exact, true);
        run({2, 40, 128, 192, 5, 3, 1, 40, 64}, exact);
        run({4, 9, 640, 704, 4, 2, 0, 9, 128}, exact);     // k ends within a box
        run({3, 90, 320, 128, 4, 2, 1, 90, 320}, exact);   // many rows an expert: up to 128 at a time
        run({3, 150, 128, 64, 3, 2, 1, 150, 128}, exact);  // 128 and 22
        run({2, 1, 128, 64, 0, 0, 0, 70, 448}, exact);     // the dense MLP alone
    }
}

}  // namespace
}  // namespace dgemma::emulated
