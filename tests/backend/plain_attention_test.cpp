// Attention of the plain backend against the scalar oracle: each table of kernels, each type of cache, causal
// rows and a canvas, pages full of NaN where nobody wrote; and a row's bits wherever a prompt was cut.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/random_data.h"

namespace dgemma::testing {
namespace {

using backend::Precision;

struct Shape {
    int heads, kv_heads, d, cached, rows;
    bool causal;
    Dtype kv;
};

// Inputs of one call, all on the bf16 grid: what a cache of bf16 holds is what the oracle's f32 holds.
struct Inputs {
    std::vector<float> q, k, v, old_k, old_v;
};

// Attention of `s.rows` rows behind `s.cached` tokens at positions 200 and on, so that a ring of 256 wraps;
// the rows see the last 100 keys, or as causal ones the last 37. Causal rows are computed `piece` at a time.
std::vector<float> attention(backend::Backend& b, const Shape& s, const Inputs& in, std::int64_t piece) {
    constexpr std::int64_t capacity = 256, start = 200;
    const auto page = static_cast<std::size_t>(backend::page_tokens * s.kv_heads * s.d);
    std::vector<std::vector<float>> memory(2 * capacity / backend::page_tokens, std::vector<float>(page));
    std::vector<void*> keys, values;
    for (std::size_t p = 0; p < memory.size(); ++p) {
        std::memset(memory[p].data(), 0xFF, page * sizeof(float));  // a NaN in every type
        (p % 2 == 0 ? keys : values).push_back(memory[p].data());
    }
    const backend::KvPages pages{keys, values, capacity, s.kv};
    const std::int64_t kv = std::int64_t{s.kv_heads} * s.d;
    const auto store = [&](const DeviceMat& k, const DeviceMat& v, std::int64_t position) {
        const backend::AttentionSegment stored{0, k.mat.rows, pages};
        std::vector<std::int32_t> positions(static_cast<std::size_t>(k.mat.rows));
        std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(position));
        b.store_kv(k.mat, v.mat, std::span(&stored, 1), positions, s.kv_heads);
    };
    const auto part = [](const std::vector<float>& x, std::int64_t first, std::int64_t count,
                         std::int64_t cols) {
        return std::vector<float>(x.begin() + first * cols, x.begin() + (first + count) * cols);
    };
    if (s.cached > 0)
        store(DeviceMat(b, s.cached, kv, in.old_k), DeviceMat(b, s.cached, kv, in.old_v), start);
    std::vector<float> all;
    for (std::int64_t first = 0; first < s.rows; first += piece) {
        const std::int64_t n = std::min<std::int64_t>(piece, s.rows - first);
        const DeviceMat q(b, n, std::int64_t{s.heads} * s.d,
                          part(in.q, first, n, std::int64_t{s.heads} * s.d)),
            k(b, n, kv, part(in.k, first, n, kv)), v(b, n, kv, part(in.v, first, n, kv)),
            out(b, n, std::int64_t{s.heads} * s.d);
        backend::AttentionSegment segment{0, n, pages, start + s.cached};
        if (s.causal) {
            segment.canvas_position = -1;
            store(k, v, start + s.cached + first);
        }
        std::vector<std::int32_t> begin, end;
        for (std::int64_t r = first; r < first + n; ++r) {
            end.push_back(static_cast<std::int32_t>(start + s.cached + (s.causal ? r + 1 : s.rows)));
            begin.push_back(
                std::max<std::int32_t>(static_cast<std::int32_t>(start), end.back() - (s.causal ? 37 : 100)));
        }
        b.attention({.q = q.mat,
                     .k = k.mat,
                     .v = v.mat,
                     .segments = std::span(&segment, 1),
                     .key_begin = begin,
                     .key_end = end,
                     .heads = s.heads,
                     .kv_heads = s.kv_heads,
                     .head_dim = s.d,
                     .out = out.mat});
        const std::vector<float> values_of = out.values();
        all.insert(all.end(), values_of.begin(), values_of.end());
    }
    return all;
}

struct Kind {
    Precision precision;
    std::string isa;
};

class Attention : public ::testing::TestWithParam<Kind> {};

TEST_P(Attention, AgreesWithTheOracleAndDoesNotDependOnCuts) {
    const auto plain = backend::make_plain_backend(GetParam().precision, 2, GetParam().isa);
    // The profile of `mixed` rounds nothing by intent: its oracle is f32.
    const auto reference = backend::make_reference_backend(
        GetParam().precision == Precision::bf16 ? Precision::bf16 : Precision::f32);
    RandomData data{23};
    const auto on_grid = [&](std::int64_t n, float scale) {
        std::vector<float> x = data.floats(n, scale);
        for (float& v : x) v = round_bf16(v);
        return x;
    };
    for (Shape s : {Shape{4, 2, 16, 40, 32, false, Dtype::f32},
                    {4, 1, 32, 0, 5, false, Dtype::f32},
                    {4, 2, 64, 131, 128, false, Dtype::f32},
                    {4, 1, 128, 70, 33, false, Dtype::f32},
                    {2, 1, 512, 65, 9, false, Dtype::f32},
                    {3, 3, 48, 20, 7, false, Dtype::f32}}) {
        const std::int64_t q = std::int64_t{s.heads} * s.d, kv = std::int64_t{s.kv_heads} * s.d;
        const Inputs in{on_grid(s.rows * q, 0.4f), on_grid(s.rows * kv, 1), on_grid(s.rows * kv, 1),
                        on_grid(s.cached * kv, 1), on_grid(s.cached * kv, 1)};
        for (const bool causal : {false, true}) {
            for (const Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
                s.causal = causal;
                s.kv = type;
                SCOPED_TRACE(::testing::Message()
                             << "head " << s.d << (causal ? " causal, " : " canvas, ") << name_of(type));
                // In bf16 a weight is rounded once, by 2^-9 of its value at most; so is, in the profile that
                // rounds, a result. Else f32 sums in another order; a score's error, which grows with its
                // size (sqrt(d)), is a relative one of its weight.
                const bool rounds = GetParam().precision == Precision::bf16 ||
                                    (GetParam().precision == Precision::mixed && type == Dtype::bf16);
                const double bound = (rounds ? 2e-3 : 2e-6) * std::max(1.0, std::sqrt(s.d / 256.0));
                const std::vector<float> all = attention(*plain, s, in, s.rows);
                EXPECT_LE(relative_error(all, attention(*reference, s, in, s.rows)), bound);
                if (!causal) continue;
                for (const std::int64_t piece : {1, 5}) {
                    const std::vector<float> cut = attention(*plain, s, in, piece);
                    EXPECT_EQ(std::memcmp(all.data(), cut.data(), all.size() * sizeof(float)), 0)
                        << "in pieces of " << piece;
                }
            }
        }
    }
}

// The more rows a call has, the more of them share a block of keys; a canvas among others gets the bits it
// gets alone.
TEST_P(Attention, ACanvasDoesNotSeeItsNeighbours) {
    const auto plain = backend::make_plain_backend(GetParam().precision, 2, GetParam().isa);
    constexpr std::int64_t rows = 130, canvases = 9, heads = 4, kv_heads = 2, d = 32;
    RandomData data{37};
    const std::vector<float> q = data.floats(rows * heads * d, 0.4f), k = data.floats(rows * kv_heads * d),
                             v = data.floats(rows * kv_heads * d);
    const auto attended = [&](std::int64_t count, Dtype type) {
        const auto repeated = [&](const std::vector<float>& x) {
            std::vector<float> all;
            for (std::int64_t i = 0; i < count; ++i) all.insert(all.end(), x.begin(), x.end());
            return all;
        };
        backend::Backend& b = *plain;
        const std::int64_t n = count * rows;
        const DeviceMat queries(b, n, heads * d, repeated(q)), keys(b, n, kv_heads * d, repeated(k)),
            values(b, n, kv_heads * d, repeated(v)), out(b, n, heads * d);
        std::vector<backend::AttentionSegment> segments;
        for (std::int64_t i = 0; i < count; ++i)
            segments.push_back({i * rows, rows, {{}, {}, backend::page_tokens, type}, 0});
        const std::vector<std::int32_t> begin(static_cast<std::size_t>(n), 0),
            end(static_cast<std::size_t>(n), static_cast<std::int32_t>(rows));
        b.attention({.q = queries.mat,
                     .k = keys.mat,
                     .v = values.mat,
                     .segments = segments,
                     .key_begin = begin,
                     .key_end = end,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = d,
                     .out = out.mat});
        return out.values();
    };
    for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
        const std::vector<float> alone = attended(1, type), all = attended(canvases, type);
        for (std::int64_t i = 0; i < canvases; ++i) {
            EXPECT_EQ(
                std::memcmp(alone.data(), all.data() + i * rows * heads * d, alone.size() * sizeof(float)), 0)
                << name_of(type) << " " << i;
        }
    }
}

std::vector<Kind> kinds() {
    std::vector<Kind> kinds;
    for (const std::string_view isa : backend::available_isas()) {
        for (const Precision p : {Precision::f32, Precision::bf16, Precision::mixed})
            kinds.push_back({p, std::string(isa)});
    }
    return kinds;
}

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& kind) {
    const Precision p = kind.param.precision;
    return kind.param.isa + (p == Precision::f32 ? "_f32" : p == Precision::bf16 ? "_bf16" : "_mixed");
}

INSTANTIATE_TEST_SUITE_P(Tables, Attention, ::testing::ValuesIn(kinds()), name_of_kind);

}  // namespace
}  // namespace dgemma::testing
