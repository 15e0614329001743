// The experts and the dense MLP in bf16 on the emulated machine, few rows an expert and many, for which
// blocks work in pairs: hidden layers and results against sums in any order, and that every block comes to
// its end.
#include <numeric>

#include <gtest/gtest.h>

#include "backend/cuda/sm90_experts.cu"
#include "emulated/chosen_rows.h"
#include "emulated/operands.h"

namespace dgemma::emulated {
namespace {

// Whole numbers of at most `most`, of which no sum is rounded, or random numbers.
struct Matrix {
    Matrix(Numbers& n, std::int64_t groups, std::int64_t outs, std::int64_t ins, int most = 1)
        : bits(groups * outs * ins), matrix{bits.data(), groups, outs, ins} {
        for (std::int64_t i = 0; i < groups * outs * ins; ++i)
            bits[i] = f32_to_bf16(n.exact ? static_cast<float>(n.whole(-most, most)) : n.normal());
    }
    [[nodiscard]] double value(std::int64_t row, std::int64_t column) {
        return bf16_to_f32(bits[row * matrix.ins + column]);
    }
    Memory<std::uint16_t> bits;
    backend::cuda::DeviceMatrix matrix;
};
struct Mlp {  // matrices of one expert: rows from `gate_row`, `up_row`, `down_row` on
    Matrix &gate, &up, &down;
    std::int64_t gate_row, up_row, down_row;
};
struct Results {
    Results(std::int64_t rows, std::int64_t hidden, std::int64_t width)
        : act(rows * width), y(rows * hidden) {}
    Memory<std::uint16_t> act, y;
};

// Of row `row` of x, which became row `at` of the results.
void judge(bool exact, Matrix& x, std::int64_t row, Mlp m, std::int64_t hidden, std::int64_t width,
           Results& got, std::int64_t at) {
    for (std::int64_t i = 0; i < width; ++i) {
        double gate = 0, up = 0;
        for (std::int64_t k = 0; k < hidden; ++k) {
            gate += x.value(row, k) * m.gate.value(m.gate_row + i, k);
            up += x.value(row, k) * m.up.value(m.up_row + i, k);
        }
        const float g = round_bf16(static_cast<float>(gate)), u = round_bf16(static_cast<float>(up));
        const float want = round_bf16(round_bf16(backend::cuda::gelu(g)) * u);
        ASSERT_NEAR(bf16_to_f32(got.act[at * width + i]), want, exact ? 0 : 0.02f * std::abs(want) + 1e-3f)
            << "column " << i;
    }
    for (std::int64_t o = 0; o < hidden; ++o) {
        double sum = 0, sizes = 0;
        for (std::int64_t i = 0; i < width; ++i) {
            const double product = bf16_to_f32(got.act[at * width + i]) * m.down.value(m.down_row + o, i);
            sum += product, sizes += std::abs(product);
        }
        ASSERT_NEAR(bf16_to_f32(got.y[at * hidden + o]), sum, 0x1p-8 * std::abs(sum) + 1e-5 * sizes)
            << "output " << o;
    }
}

struct Case {
    int blocks;
    std::int64_t hidden, width;
    std::vector<int> rows;  // of each expert
    std::int64_t dense_rows, dense_width;
};

// beside: the router is done at the last moment, and the dense MLP begins without it.
void run(const Case& c, bool exact, bool beside_router = false) {
    SCOPED_TRACE(std::to_string(c.rows.size()) + " experts on " + std::to_string(c.blocks) + " blocks" +
                 (exact ? ", exact" : ", random"));
    Numbers numbers(exact);
    const auto experts = static_cast<std::int64_t>(c.rows.size());
    const std::int64_t rows = *std::max_element(c.rows.begin(), c.rows.end()) + 3;
    Matrix x(numbers, 1, rows, c.hidden, 3),
        dense_x(numbers, 1, std::max<std::int64_t>(c.dense_rows, 1), c.hidden);
    Matrix gate_up(numbers, experts, 2 * c.width, c.hidden), down(numbers, experts, c.hidden, c.width);
    Matrix dense_gate(numbers, 1, c.dense_width, c.hidden), dense_up(numbers, 1, c.dense_width, c.hidden),
        dense_down(numbers, 1, c.hidden, c.dense_width);
    std::vector<std::vector<int>> rows_of(c.rows.size());
    for (std::int64_t e = 0; e < experts; ++e) {
        const auto own = static_cast<std::size_t>(e);
        for (int r = 0; r < c.rows[own]; ++r) rows_of[own].push_back(static_cast<int>((r * 7 + e) % rows));
    }
    ChosenRows chosen_rows(rows_of);
    Results got(chosen_rows.pairs(), c.hidden, c.width), dense(c.dense_rows, c.hidden, c.dense_width);
    backend::cuda::DenseBeside beside;
    if (c.dense_rows > 0) {
        beside = {dense_x.bits.data(), c.dense_rows,     dense_gate.matrix, dense_up.matrix,
                  dense_down.matrix,   dense.act.data(), dense.y.data()};
    }
    backend::cuda::Context context{c.blocks};
    backend::cuda::sm90_experts(context, x.bits.data(), gate_up.matrix, down.matrix,
                                chosen_rows.places(beside_router), got.act.data(), got.y.data(), beside);
    for (std::int64_t e = 0; e < experts; ++e) {
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

TEST(EmulatedSlow, ExpertsAndDenseOfFewRows) {
    run({3, 192, 64, {2, 0, 7, 1}, 7, 192}, true);
    run({5, 320, 96, {70, 0, 31}, 90, 320}, false, true);
}

std::int64_t average(const Case& c) {
    return std::accumulate(c.rows.begin(), c.rows.end(), std::int64_t{0}) /
           static_cast<std::int64_t>(c.rows.size());
}

TEST(EmulatedSlow, ExpertsAndDenseOfManyRows) {
    for (const Case& c : {Case{2, 64, 64, {64}, 0, 64},
                          {5, 64, 64, {16, 17, 330}, 16, 64},  // fewer stages an item than a ring has
                          {6, 320, 96, {0, 1, 15, 161, 321}, 161, 320}}) {  // tiles that end within a box
        ASSERT_TRUE(average(c) >= backend::cuda::many_rows && average(c) < backend::cuda::paired_rows);
        run(c, true, c.dense_rows == 16);
        run(c, false);
    }
}

// A pair of blocks has an item of up to 320 rows; the second has none of at most 16.
TEST(EmulatedSlow, ExpertsAndDenseByPairsOfBlocks) {
    for (const Case& c : {Case{4, 128, 64, {16, 17, 560}, 16, 64},        // few stages an item
                          {6, 384, 96, {0, 1, 15, 161, 800}, 161, 320},   // tiles that end within a box
                          {7, 192, 64, {1, 321, 15, 480, 161}, 337, 64},  // a multiprocessor is left over
                          {12, 192, 704, {400, 0}, 40, 64}}) {            // fewer dense items than pairs
        ASSERT_GE(average(c), backend::cuda::paired_rows);
        run(c, true, c.dense_rows != 161);
        run(c, false);
    }
}

}  // namespace
}  // namespace dgemma::emulated
