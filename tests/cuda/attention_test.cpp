// Attention and the cache on the device: every head size, rings that wrap, causal prompts and canvases,
// several sequences in a call, against the scalar oracle; and that neighbours and cuts change no bit.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "cuda/device.h"

namespace dgemma::testing {
namespace {

using backend::page_tokens;
using backend::Precision;

// The cache of one sequence in the backend's memory. Slots that nobody wrote hold NaN.
class Pages {
  public:
    Pages(backend::Backend& b, std::int64_t capacity, int kv_heads, int d, Dtype type)
        : capacity_(capacity), type_(type) {
        const auto bytes = static_cast<std::size_t>(page_tokens * kv_heads * d) * size_of(type);
        for (std::int64_t p = 0; p < 2 * capacity / page_tokens; ++p) {
            auto& memory = memory_.emplace_back(DeviceMat::take(b.allocate(bytes)));
            const auto elements = static_cast<std::int64_t>(bytes / b.activation_bytes());
            b.upload(std::vector<float>(static_cast<std::size_t>(elements),
                                        std::numeric_limits<float>::quiet_NaN()),
                     {memory->data(), 1, elements});
            (p % 2 == 0 ? keys_ : values_).push_back(memory->data());
        }
    }
    [[nodiscard]] backend::KvPages view() const { return {keys_, values_, capacity_, type_}; }

  private:
    std::int64_t capacity_;
    Dtype type_;
    std::vector<std::unique_ptr<backend::Storage>> memory_;
    std::vector<void*> keys_, values_;
};

struct Rows {
    int heads, kv_heads, d;
    std::int64_t cached, rows;
    bool causal;
};

class Attention : public ::testing::TestWithParam<DeviceKind> {
  protected:
    void SetUp() override {
        device = make_device(GetParam());
        reference = backend::make_reference_backend(GetParam().precision);
    }
    [[nodiscard]] bool bf16() const { return GetParam().precision == Precision::bf16; }
    std::vector<float> activations(std::int64_t n, float scale = 1) {
        std::vector<float> x = data.floats(n, scale);
        if (bf16()) {
            for (float& v : x) v = round_bf16(v);
        }
        return x;
    }

    // One sequence: `cached` tokens from position `start` on, then `rows` of the call.
    struct Sequence {
        std::vector<float> old_k, old_v, q, k, v;
    };
    Sequence sequence(const Rows& s) {
        const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
        return {activations(s.cached * s.kv_heads * s.d), activations(s.cached * s.kv_heads * s.d),
                activations(s.rows * s.heads * s.d, scale), activations(s.rows * s.kv_heads * s.d),
                activations(s.rows * s.kv_heads * s.d)};
    }

    // Attention of all sequences in one call; rows of the sequences one after another.
    static std::vector<float> attend(backend::Backend& b, const std::vector<Rows>& shapes,
                                     const std::vector<Sequence>& sequences, std::int64_t capacity,
                                     std::int64_t start, std::int64_t window) {
        const int heads = shapes[0].heads, kv_heads = shapes[0].kv_heads, d = shapes[0].d;
        const auto type = b.precision() == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
        std::vector<std::unique_ptr<Pages>> caches;
        std::vector<float> q, k, v;
        std::vector<backend::AttentionSegment> segments;
        std::vector<std::int32_t> begin, end, positions;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            const Rows& s = shapes[i];
            const Sequence& x = sequences[i];
            auto& pages = *caches.emplace_back(std::make_unique<Pages>(b, capacity, kv_heads, d, type));
            if (s.cached > 0) {
                const DeviceMat ok(b, s.cached, kv_heads * d, x.old_k),
                    ov(b, s.cached, kv_heads * d, x.old_v);
                const backend::AttentionSegment stored{0, s.cached, pages.view()};
                std::vector<std::int32_t> at(static_cast<std::size_t>(s.cached));
                std::iota(at.begin(), at.end(), static_cast<std::int32_t>(start));
                b.store_kv(ok.mat, ov.mat, std::span(&stored, 1), at, kv_heads);
            }
            q.insert(q.end(), x.q.begin(), x.q.end());
            k.insert(k.end(), x.k.begin(), x.k.end());
            v.insert(v.end(), x.v.begin(), x.v.end());
            segments.push_back({static_cast<std::int64_t>(begin.size()), s.rows, pages.view(),
                                s.causal ? -1 : start + s.cached});
            for (std::int64_t r = 0; r < s.rows; ++r) {
                const std::int64_t position = start + s.cached + r;
                positions.push_back(static_cast<std::int32_t>(position));
                end.push_back(static_cast<std::int32_t>(s.causal ? position + 1 : start + s.cached + s.rows));
                const std::int64_t first = s.causal ? position - window + 1 : start + s.cached - window + 1;
                begin.push_back(static_cast<std::int32_t>(std::max(start, first)));
            }
        }
        const auto n = static_cast<std::int64_t>(begin.size());
        const DeviceMat qm(b, n, heads * d, q), km(b, n, kv_heads * d, k), vm(b, n, kv_heads * d, v),
            out(b, n, heads * d);
        if (shapes[0].causal) b.store_kv(km.mat, vm.mat, segments, positions, kv_heads);
        b.attention({.q = qm.mat,
                     .k = km.mat,
                     .v = vm.mat,
                     .segments = segments,
                     .key_begin = begin,
                     .key_end = end,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = d,
                     .out = out.mat});
        return out.values();
    }

    RandomData data{static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + 1};
    std::unique_ptr<backend::Backend> device, reference;
};

TEST_P(Attention, AgainstTheOracle) {
    for (const Rows& s :
         {Rows{4, 2, 16, 0, 5, false},
          {4, 2, 16, 70, 33, true},
          {4, 1, 32, 130, 40, false},
          {2, 2, 48, 67, 19, false},
          {8, 4, 64, 100, 128, true},
          {4, 2, 128, 129, 70, false},
          {16, 8, 256, 150, 40, false},
          {16, 8, 256, 90, 20, true},
          {16, 2, 512, 200, 24, false},
          {16, 2, 512, 75, 9, true},
          {16, 2, 512, 400, 17, false},
          // Whole tiles of the cache and of the call, and a group that divides no block's rows.
          {16, 8, 256, 320, 256, false},
          {16, 8, 256, 300, 200, true},
          {16, 2, 512, 290, 200, false},
          {16, 2, 512, 120, 130, true},
          {6, 2, 256, 150, 140, false},
          // More tiles than a warp has lanes.
          {16, 8, 256, 2200, 5, true},
          {16, 2, 512, 2200, 5, true}}) {
        const std::int64_t capacity = (s.cached + s.rows + 2 * page_tokens - 1) / page_tokens * page_tokens;
        const Sequence x = sequence(s);
        for (const std::int64_t window : {std::int64_t{37}, std::int64_t{100000}}) {
            const std::string what = "heads of " + std::to_string(s.d) + (s.causal ? " causal" : " canvas") +
                                     " window " + std::to_string(window);
            const auto got = attend(*device, {s}, {x}, capacity, 200, window);
            const auto want = attend(*reference, {s}, {x}, capacity, 200, window);
            // The oracle rounds scores and weights in bf16 as the eager reference does; we only the result.
            EXPECT_LE(relative_error(got, want), bf16() ? 6e-3 : 1e-5) << what;
            EXPECT_EQ(got, attend(*device, {s}, {x}, capacity, 200, window)) << what;
        }
    }
}

TEST_P(Attention, NeighboursChangeNoBit) {
    for (const Rows& s :
         {Rows{16, 8, 256, 300, 40, false}, {16, 2, 512, 300, 24, false}, {4, 2, 64, 90, 50, true}}) {
        const Rows other{s.heads, s.kv_heads, s.d, s.cached / 2 + 13, s.rows + 30, s.causal};
        const Sequence x = sequence(s), y = sequence(other);
        const auto alone = attend(*device, {s}, {x}, 512, 64, 100000);
        auto beside = attend(*device, {other, s}, {y, x}, 512, 64, 100000);
        beside.erase(beside.begin(), beside.end() - static_cast<std::ptrdiff_t>(alone.size()));
        EXPECT_EQ(alone, beside) << s.d;
    }
}

// So many that Hopper's blocks do all parts of their rows' keys and not one; of contexts that leave parts
// without a tile.
TEST_P(Attention, ManyNeighboursChangeNoBit) {
    for (const auto& [kv_heads, d] : {std::pair{8, 256}, std::pair{2, 512}}) {
        std::vector<Rows> shapes;
        std::vector<Sequence> sequences;
        for (int i = 0; i < 22; ++i) {
            shapes.push_back({16, kv_heads, d, i == 0 ? 300 : 37 * i % 400, 24, false});
            sequences.push_back(sequence(shapes.back()));
        }
        const auto together = attend(*device, shapes, sequences, 512, 64, 250);
        auto at = together.begin();
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            const auto alone = attend(*device, {shapes[i]}, {sequences[i]}, 512, 64, 250);
            EXPECT_TRUE(std::equal(alone.begin(), alone.end(), at)) << d << " number " << i;
            at += static_cast<std::ptrdiff_t>(alone.size());
        }
        EXPECT_LE(relative_error(together, attend(*reference, shapes, sequences, 512, 64, 250)),
                  bf16() ? 6e-3 : 1e-5)
            << d;
    }
}

// Rows of a prompt that come in one call or in two see the same keys and give the same bits.
TEST_P(Attention, CutsChangeNoBit) {
    for (const Rows& whole :
         {Rows{16, 8, 256, 100, 90, true}, {16, 2, 512, 100, 90, true}, {4, 2, 16, 3, 90, true}}) {
        const Sequence x = sequence(whole);
        const auto all = attend(*device, {whole}, {x}, 512, 64, 77);
        for (const std::int64_t cut : {std::int64_t{1}, std::int64_t{29}, std::int64_t{64}}) {
            Rows rest = whole;
            rest.cached += cut;
            rest.rows -= cut;
            Sequence y = x;
            const auto kv = static_cast<std::ptrdiff_t>(cut * whole.kv_heads * whole.d);
            const auto move = [&](std::vector<float>& from, std::vector<float>& to) {
                to.insert(to.end(), from.begin(), from.begin() + kv);
                from.erase(from.begin(), from.begin() + kv);
            };
            move(y.k, y.old_k);
            move(y.v, y.old_v);
            y.q.erase(y.q.begin(), y.q.begin() + static_cast<std::ptrdiff_t>(cut * whole.heads * whole.d));
            const auto tail = attend(*device, {rest}, {y}, 512, 64, 77);
            EXPECT_TRUE(
                std::equal(tail.begin(), tail.end(), all.end() - static_cast<std::ptrdiff_t>(tail.size())))
                << whole.d << " cut at " << cut;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Attention,
                         ::testing::Values(DeviceKind{Precision::f32, true},
                                           DeviceKind{Precision::bf16, true},
                                           DeviceKind{Precision::bf16, false}),
                         [](const auto& kind) { return name_of_kind(kind.param); });

}  // namespace
}  // namespace dgemma::testing
