// The oracle's own rounding of activations to E4M3: by hand, on the smallest numbers that show it.
#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/e4m3_weight.h"
#include "backend/random_data.h"
#include "base/e4m3_rows.h"

namespace dgemma::testing {
namespace {

std::vector<float> project(bool e4m3, const std::vector<float>& x, const WeightView& w) {
    const auto b = backend::make_reference_backend(backend::Precision::f32, e4m3);
    const auto rows = static_cast<std::int64_t>(x.size()) / w.shape[1];
    const DeviceMat in(*b, rows, w.shape[1], x), out(*b, rows, w.shape[0]);
    b->project(in.mat, *DeviceMat::take(b->prepare_encoded(w)), out.mat);
    return out.values();
}

TEST(E4m3Activations, OnlyRowsThatMeetE4m3AreRounded) {
    // 448 makes the scale of the first row one; 17 lies between the codes 16 and 18 and goes to the even one.
    const std::vector<float> x{448, 17, 3, 0, 224, 8.5f, 1, 0};
    const std::vector<float> w{0, 1, 0, 0, 1, 0, 2, 0};
    const E4m3Weight coded({2, 4}, w, 0.5f);
    EXPECT_EQ(project(true, x, coded.view), (std::vector<float>{16, 454, 8, 226}));
    EXPECT_EQ(project(false, x, coded.view), (std::vector<float>{17, 454, 8.5f, 226}));
    const HostTensor plain(w, Dtype::bf16, {2, 4});
    EXPECT_EQ(project(true, x, WeightView::of(plain.view)), (std::vector<float>{17, 454, 8.5f, 226}));
}

TEST(E4m3Activations, HiddenLayersHaveAScaleForEvery128Columns) {
    // gate 8 and up u make 8 u (gelu(8) is 8); a first piece with a large number, a second one without.
    constexpr std::int64_t hidden = 2, width = 256;
    std::vector<float> gate(width * hidden), up(width * hidden), down(hidden * width);
    for (std::int64_t i = 0; i < width; ++i) gate[static_cast<std::size_t>(i * hidden)] = 8;
    up[1 * hidden + 1] = 56;       // 448 in column 1
    up[2 * hidden + 1] = 2.125;    // 17 in column 2, among the codes of scale 1
    up[128 * hidden + 1] = 2.125;  // 17 again, the largest of its piece
    down[2] = 1;                   // row 0: column 2
    down[width + 128] = 1;         // row 1: column 128
    const HostTensor g(gate, Dtype::f32, {width, hidden}), u(up, Dtype::f32, {width, hidden});
    const E4m3Weight d({hidden, width}, down, 1);
    const auto b = backend::make_reference_backend(backend::Precision::f32, true);
    const DeviceMat in(*b, 1, hidden, {1, 1}), out(*b, 1, hidden);
    b->gated_mlp(in.mat, *DeviceMat::take(b->prepare(g.view)), *DeviceMat::take(b->prepare(u.view)),
                 *DeviceMat::take(b->prepare_encoded(d.view)), out.mat);
    EXPECT_EQ(out.values()[0], 16);
    EXPECT_NEAR(out.values()[1], 17, 1e-5);
}

}  // namespace
}  // namespace dgemma::testing
