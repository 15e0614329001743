// Weights of 4 and 8 bits on the GPU against the scalar oracle, which decodes the same bytes: every encoding
// and layout, the model's sizes and small ones, experts without a row and with several blocks of them.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "cuda/device.h"
#include "files/quantizers.h"

namespace dgemma::testing {
namespace {

using backend::Precision;

// Rows of given numbers.
class GivenRows : public files::RowSource {
  public:
    GivenRows(std::vector<float> values, std::int64_t cols) : values_(std::move(values)), cols_(cols) {}
    void read(std::int64_t row, float* out) const override {
        std::copy_n(values_.begin() + row * cols_, cols_, out);
    }

  private:
    std::vector<float> values_;
    std::int64_t cols_;
};

struct Kind {
    Encoding encoding;
    Layout layout;
    DeviceKind device;
};

std::string name_of_case(const ::testing::TestParamInfo<Kind>& info) {
    return std::string(name_of(info.param.encoding)) + "_" + std::string(name_of(info.param.layout)) + "_" +
           name_of_kind(info.param.device);
}

class Packed : public ::testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        device = make_device(GetParam().device);
        reference = backend::make_reference_backend(GetParam().device.precision);
    }
    [[nodiscard]] bool bf16() const { return GetParam().device.precision == Precision::bf16; }
    [[nodiscard]] bool packs() const {
        return bf16() && GetParam().device.hopper_kernels && GetParam().encoding != Encoding::plain;
    }
    // On the bf16 path a weight is rounded to bf16 as well as what is computed.
    [[nodiscard]] double bound() const { return bf16() ? 8e-3 : 1e-5; }
    files::OwnedWeight encoded(const Shape& shape, float scale, Encoding encoding) {
        ThreadPool pool(1);
        const bool affine = encoding == Encoding::affine8 || encoding == Encoding::affine4;
        const bool tiles = affine || encoding == Encoding::plain;
        const GivenRows rows(data.floats(elements_of(shape), scale), shape.back());
        auto made = DeviceMat::take(files::encode_weight(
            "w", {shape, encoding, tiles ? Layout::tiles : Layout::rows, Dtype::bf16}, rows, pool));
        if (made.view.layout != GetParam().layout)
            return DeviceMat::take(files::with_layout(made.view, GetParam().layout));
        return made;
    }
    files::OwnedWeight encoded(const Shape& shape, float scale = 0.06f) {
        return encoded(shape, scale, GetParam().encoding);
    }
    std::vector<float> activations(std::int64_t n) {
        std::vector<float> x = data.floats(n);
        if (bf16()) {
            for (float& v : x) v = round_bf16(v);
        }
        return x;
    }
    // What the device and the reference said so far.
    struct Both {
        std::vector<float> got, want;
    };
    template <class F>
    void ask(F f, const std::string& what, Both& both) {
        const std::vector<float> got = f(*device), want = f(*reference);
        EXPECT_EQ(got, f(*device)) << what << ": another run gave other bits";
        both.got.insert(both.got.end(), got.begin(), got.end());
        both.want.insert(both.want.end(), want.begin(), want.end());
    }
    void judge(const Both& both, const std::string& what) {
        EXPECT_LE(relative_error(both.got, both.want), bound()) << what;
    }
    template <class F>
    void same(F f, const std::string& what) {
        Both both;
        ask(f, what, both);
        judge(both, what);
    }
    // Few numbers may all be off the same way (of one row of 64, one in a thousand by 0.012): several draws
    // of them are judged together.
    static int draws(std::int64_t numbers) { return numbers < 256 ? 16 : 1; }
    static std::unique_ptr<backend::Weight> branch(backend::Backend& b, const files::OwnedWeight& w) {
        return DeviceMat::take(b.prepare_branch(w.view));
    }

    RandomData data{static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + 5};
    std::unique_ptr<backend::Backend> device, reference;
};

// Where a weight is not kept packed it becomes numbers.
TEST_P(Packed, Project) {
    for (const auto& [rows, ins, outs] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{3, 64, 33},
                                          {37, 2112, 104},
                                          {5, 2816, 1408}}) {
        const std::vector<float> x = activations(rows * ins);
        const files::OwnedWeight w = encoded({outs, ins});
        same(
            [&, rows = rows, ins = ins, outs = outs](backend::Backend& b) {
                const DeviceMat in(b, rows, ins, x), out(b, rows, outs);
                b.project(in.mat, *DeviceMat::take(b.prepare_encoded(w.view)), out.mat);
                return out.values();
            },
            "project " + std::to_string(ins));
    }
}

TEST_P(Packed, GatedMlp) {
    for (const auto& [rows, hidden, width] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{5, 64, 96},
                                              {130, 256, 448},
                                              {1, 64, 64},
                                              {9, 2816, 2112}}) {
        const std::string what = "gated_mlp " + std::to_string(hidden);
        Both both;
        for (int draw = 0; draw < draws(rows * hidden); ++draw) {
            const std::vector<float> x = activations(rows * hidden);
            const files::OwnedWeight gate = encoded({width, hidden}), up = encoded({width, hidden}),
                                     down = encoded({hidden, width});
            const auto mlp = [&, hidden = hidden](backend::Backend& b, std::int64_t count) {
                const DeviceMat in(b, count, hidden, {x.begin(), x.begin() + count * hidden}),
                    out(b, count, hidden);
                b.gated_mlp(in.mat, *branch(b, gate), *branch(b, up), *branch(b, down), out.mat);
                return out.values();
            };
            ask([&, rows = rows](backend::Backend& b) { return mlp(b, rows); }, what, both);
            // With fewer tokens beside it a row goes through other shapes of the matrix instruction.
            const std::vector<float> all = mlp(*device, rows),
                                     few = mlp(*device, std::min<std::int64_t>(rows, 3));
            EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()))
                << "a row's bits depend on its neighbours";
        }
        judge(both, what);
    }
}

// `common` experts get every row; the dense MLP is of the encoding that the profile pairs with the experts'.
TEST_P(Packed, Branches) {
    struct Case {
        std::int64_t rows, hidden, experts, width, k, common, dense_width;
    };
    for (const Case& c : {Case{1, 64, 8, 32, 2, 0, 64},
                          {29, 128, 16, 64, 4, 0, 192},
                          {300, 128, 16, 64, 4, 2, 64},
                          {70, 128, 130, 64, 8, 3, 448},
                          {9, 2816, 8, 704, 4, 1, 2112}}) {
        if (c.hidden > 1000 && !packs()) continue;
        const std::string what = "branches " + std::to_string(c.rows) + "x" + std::to_string(c.hidden);
        Both both;
        for (int draw = 0; draw < draws(c.rows * c.hidden); ++draw) {
            const std::vector<float> h = activations(c.rows * c.hidden);
            std::vector<float> router = data.floats(c.experts * c.hidden, 0.5f);
            for (std::int64_t i = 0; i < c.common * c.hidden; ++i)
                router[static_cast<std::size_t>(i)] = 0.05f * h[static_cast<std::size_t>(i % c.hidden)];
            const HostTensor scale(data.floats(c.hidden, 0.1f, 1), Dtype::f32, {c.hidden});
            const HostTensor proj(router, Dtype::bf16, {c.experts, c.hidden});
            const HostTensor per_expert(data.floats(c.experts, 0.1f, 1), Dtype::f32, {c.experts});
            const files::OwnedWeight gate_up = encoded({c.experts, 2 * c.width, c.hidden}),
                                     down = encoded({c.experts, c.hidden, c.width});
            const Encoding beside = GetParam().encoding == Encoding::affine4 ? Encoding::affine8
                                    : GetParam().encoding == Encoding::nvfp4 ? Encoding::fp8_row
                                                                             : GetParam().encoding;
            const files::OwnedWeight gate = encoded({c.dense_width, c.hidden}, 0.06f, beside),
                                     up = encoded({c.dense_width, c.hidden}, 0.06f, beside),
                                     dense_down = encoded({c.hidden, c.dense_width}, 0.06f, beside);
            const auto run = [&](backend::Backend& b) {
                const DeviceMat in(b, c.rows, c.hidden, h), dense(b, c.rows, c.hidden),
                    sparse(b, c.rows, c.hidden);
                const WideMat ids(b, c.rows, c.k), weights(b, c.rows, c.k);
                const auto ws = weight(b, scale), wp = weight(b, proj), we = weight(b, per_expert);
                const auto wg = branch(b, gate), wu = branch(b, up), wd = branch(b, dense_down),
                           wgu = branch(b, gate_up), wed = branch(b, down);
                b.branches({.dense_in = in.mat,
                            .gate = wg.get(),
                            .up = wu.get(),
                            .down = wd.get(),
                            .dense = dense.mat,
                            .h = in.mat,
                            .router = {ws.get(), wp.get(), we.get(),
                                       1.0f / std::sqrt(static_cast<float>(c.hidden)), 1e-6f},
                            .routing = {ids.mat, weights.mat, {}},
                            .experts_in = in.mat,
                            .gate_up = wgu.get(),
                            .expert_down = wed.get(),
                            .experts = sparse.mat});
                std::vector<float> out = dense.values();
                const std::vector<float> rest = sparse.values();
                out.insert(out.end(), rest.begin(), rest.end());
                return out;
            };
            ask(run, what, both);
        }
        judge(both, what);
    }
}

std::vector<Kind> kinds() {
    std::vector<Kind> out;
    for (const DeviceKind& device :
         {DeviceKind{Precision::bf16, true}, {Precision::bf16, false}, {Precision::f32, true}}) {
        for (const auto& [encoding, layout] : {std::pair{Encoding::affine8, Layout::tiles},
                                               {Encoding::affine4, Layout::tiles},
                                               {Encoding::affine8, Layout::rows},
                                               {Encoding::affine4, Layout::rows},
                                               {Encoding::fp8_row, Layout::rows},
                                               {Encoding::nvfp4, Layout::rows},
                                               {Encoding::plain, Layout::tiles}})
            out.push_back({encoding, layout, device});
    }
    return out;
}
INSTANTIATE_TEST_SUITE_P(Cuda, Packed, ::testing::ValuesIn(kinds()), name_of_case);

}  // namespace
}  // namespace dgemma::testing
