// The products of attention's projections in E4M3 on the emulated machine, against sums in their order.
#include <gtest/gtest.h>

#include "backend/cuda/sm90_e4m3_gemm.cu"
#include "emulated/operands.h"

namespace dgemma::emulated {
namespace {

void multiply(int blocks, std::int64_t rows, std::int64_t ins, const std::vector<std::int64_t>& outs,
              bool exact) {
    SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(ins) + (exact ? " exact" : " random"));
    Numbers numbers(exact);
    Rows x(numbers, rows, ins);
    std::vector<std::unique_ptr<Codes>> weights;
    std::vector<std::unique_ptr<Memory<std::uint16_t>>> got;
    std::vector<backend::cuda::E4m3Matrix> matrices;
    std::vector<void*> to;
    for (const std::int64_t n : outs) {
        matrices.push_back(weights.emplace_back(std::make_unique<Codes>(numbers, 1, n, ins))->matrix);
        to.push_back(got.emplace_back(std::make_unique<Memory<std::uint16_t>>(rows * n))->data());
    }
    backend::cuda::Context context{blocks};
    backend::cuda::sm90_e4m3_multiply(context, x.view(), rows, matrices.data(), to.data(),
                                      static_cast<int>(outs.size()));
    for (std::size_t w = 0; w < outs.size(); ++w) {
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t o = 0; o < outs[w]; ++o) {
                double sum = 0;
                for (std::int64_t k = 0; k < ins; ++k) sum += x.value(r, k) * weights[w]->value(o, k);
                const float want = round_bf16(static_cast<float>(sum) * x.scales[r] * weights[w]->scales[o]);
                const float is = bf16_to_f32((*got[w])[r * outs[w] + o]);
                if (exact) {
                    ASSERT_EQ(is, want) << "weight " << w << ", " << r << ", " << o;
                } else {
                    ASSERT_NEAR(is, want, 1e-2 * std::abs(want) + 1e-2)
                        << "weight " << w << ", " << r << ", " << o;
                }
            }
        }
    }
}

TEST(EmulatedSlow, E4m3Products) {
    for (const bool exact : {true, false}) {
        multiply(3, 1, 64, {64}, exact);
        multiply(40, 5, 192, {128, 64, 64}, exact);  // tiles of 64
        multiply(3, 130, 704, {192}, exact);
        multiply(2, 257, 320, {384, 64}, exact);  // of 128, several a block
        multiply(4, 140, 256, {384}, exact);      // of 192
        multiply(4, 100, 256, {384, 320}, exact);
    }
}

}  // namespace
}  // namespace dgemma::emulated
