// What E4M3 on Hopper must leave as it is: rows their independence and their NaN, what norms quantise on the
// way, and everything where it was not asked for.
#include <limits>
#include <utility>

#include "cuda/e4m3.h"

namespace dgemma::testing {
namespace {

using E4m3Pass = E4m3;

TEST_F(E4m3Pass, ARowDependsOnItselfAlone) {
    const std::int64_t hidden = 512, width = 320, rows = 300;
    const Floats x = activations(rows * hidden);
    const E4m3Weight &gate = random({width, hidden}, 0.05f), &up = random({width, hidden}, 0.05f),
                     &down = random({hidden, width}, 0.05f), &narrow = random({64, hidden}, 0.05f);
    const Choices chosen = choices(rows, 6, 4, 1);
    const auto first = branch(*device, random({6, 2 * width, hidden}, 0.05f)),
               second = branch(*device, random({6, hidden, width}, 0.05f));
    const auto part = [&](std::int64_t from, std::int64_t count) {
        const Floats own(x.begin() + from * hidden, x.begin() + (from + count) * hidden);
        const Choices few{{chosen.ids.begin() + from * 4, chosen.ids.begin() + (from + count) * 4},
                          {chosen.shares.begin() + from * 4, chosen.shares.begin() + (from + count) * 4}};
        return std::vector<Floats>{mlp(*device, own, gate, up, down), project(*device, own, gate),
                                   project(*device, own, narrow),
                                   experts(*device, own, few, *first, *second)};
    };
    const std::vector<Floats> all = part(0, rows);
    for (const auto& [from, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {150, 1}, {3, 20}, {64, 65}, {7, 290}}) {
        const std::vector<Floats> some = part(from, count);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const auto outs = static_cast<std::int64_t>(all[i].size()) / rows;
            EXPECT_TRUE(std::equal(some[i].begin(), some[i].end(), all[i].begin() + from * outs))
                << "operation " << i << ", rows " << from << " to " << from + count;
        }
    }
}

// A row that is not finite must come out so, for the watch to see, and leave others as they are.
TEST_F(E4m3Pass, BrokenRowsStayBrokenAndAlone) {
    const std::int64_t hidden = 256, width = 128, rows = 20;
    const Floats sound = activations(rows * hidden);
    Floats x = sound;
    x[2 * hidden + 5] = std::numeric_limits<float>::quiet_NaN();
    x[11 * hidden + 255] = -std::numeric_limits<float>::infinity();
    const E4m3Weight &gate = random({width, hidden}, 0.05f), &up = random({width, hidden}, 0.05f),
                     &down = random({hidden, width}, 0.05f);
    const Choices chosen = choices(rows, 6, 4, 1);
    const auto first = branch(*device, random({6, 2 * width, hidden}, 0.05f)),
               second = branch(*device, random({6, hidden, width}, 0.05f));
    const auto run = [&](const Floats& from) {
        return std::vector<Floats>{project(*device, from, gate), mlp(*device, from, gate, up, down),
                                   experts(*device, from, chosen, *first, *second)};
    };
    const std::vector<Floats> got = run(x), want = run(sound);
    for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t outs = got[i].size() / rows;
        for (std::size_t n = 0; n < got[i].size(); ++n) {
            if (n / outs == 2 || n / outs == 11) {
                EXPECT_TRUE(std::isnan(got[i][n])) << "operation " << i << ", number " << n;
            } else {
                EXPECT_EQ(got[i][n], want[i][n]) << "operation " << i << ", number " << n;
            }
        }
    }
}

// Both branches in one kernel, of few rows an expert and of many: what each gives alone.
TEST_F(E4m3Pass, BranchesAreMlpAndExperts) {
    constexpr std::int64_t hidden = 384, width = 128, dense_width = 448;
    constexpr std::int32_t count = 6, k = 4;
    Backend& b = *device;
    const HostTensor scale(Floats(static_cast<std::size_t>(hidden), 1), Dtype::f32, {hidden}),
        per_expert(Floats(static_cast<std::size_t>(count), 1), Dtype::f32, {count}),
        proj(data.floats(count * hidden, 0.5f), Dtype::bf16, {count, hidden});
    const auto ws = weight(b, scale), we = weight(b, per_expert), wp = weight(b, proj);
    const E4m3Weight &gate = random({dense_width, hidden}, 0.05f), &up = random({dense_width, hidden}, 0.05f),
                     &down = random({hidden, dense_width}, 0.05f);
    const auto wg = branch(b, gate), wu = branch(b, up), wd = branch(b, down),
               first = branch(b, random({count, 2 * width, hidden}, 0.05f)),
               second = branch(b, random({count, hidden, width}, 0.1f));
    for (const std::int64_t rows : {1, 20, 300}) {
        const Floats x = activations(rows * hidden), h = activations(rows * hidden);
        const DeviceMat in(b, rows, hidden, x), router_in(b, rows, hidden, h), dense(b, rows, hidden),
            sparse(b, rows, hidden), alone(b, rows, hidden);
        const WideMat ids(b, rows, k), shares(b, rows, k);
        b.branches({.dense_in = in.mat,
                    .gate = wg.get(),
                    .up = wu.get(),
                    .down = wd.get(),
                    .dense = dense.mat,
                    .h = router_in.mat,
                    .router = {ws.get(), wp.get(), we.get(), 0.06f, 1e-6f},
                    .routing = {ids.mat, shares.mat, {}},
                    .experts_in = in.mat,
                    .gate_up = first.get(),
                    .expert_down = second.get(),
                    .experts = sparse.mat});
        EXPECT_EQ(dense.values(), mlp(b, x, gate, up, down)) << rows;
        b.experts(in.mat, {ids.mat, shares.mat, {}}, *first, *second, alone.mat);
        EXPECT_EQ(sparse.values(), alone.values()) << rows;
    }
}

// What norms quantise on the way is what the kernel of its own makes of the same rows.
TEST_F(E4m3Pass, NormsQuantiseOnTheWay) {
    const std::int64_t rows = 41, hidden = 2816, width = 128, dim = 64;
    const std::int32_t count = 16, k = 4;
    Backend& b = *device;
    const HostTensor ones(Floats(static_cast<std::size_t>(hidden), 1), Dtype::f32, {hidden}),
        uneven(data.floats(hidden, 0.3f, 1), Dtype::f32, {hidden}), scalar({0.8f}, Dtype::f32, {1}),
        head(Floats(static_cast<std::size_t>(dim), 1), Dtype::f32, {dim}),
        per_expert(Floats(static_cast<std::size_t>(count), 1), Dtype::f32, {count}),
        proj(data.floats(count * hidden, 0.5f), Dtype::bf16, {count, hidden});
    const auto w1 = weight(b, ones), w2 = weight(b, uneven), ws = weight(b, scalar), wh = weight(b, head),
               we = weight(b, per_expert), wp = weight(b, proj);
    const auto gate = branch(b, random({width, hidden}, 0.02f)),
               up = branch(b, random({width, hidden}, 0.02f)),
               down = branch(b, random({hidden, width}, 0.1f)),
               first = branch(b, random({count, 2 * width, hidden}, 0.02f)),
               second = branch(b, random({count, hidden, width}, 0.1f));
    const auto projection = [&](std::int64_t outs) {
        return DeviceMat::take(b.prepare_projection(random({outs, hidden}, 0.02f).view));
    };
    const auto wq = projection(4 * dim), wk = projection(2 * dim), wv = projection(2 * dim);
    const backend::RouterWeights router{w2.get(), wp.get(), we.get(), 1.0f / std::sqrt(2816.0f), 1e-6f};

    const DeviceMat h(b, rows, hidden, activations(rows * hidden)),
        added(b, rows, hidden, activations(rows * hidden, 3)), dense_in(b, rows, hidden),
        experts_in(b, rows, hidden), dense(b, rows, hidden), sparse(b, rows, hidden), out(b, rows, hidden),
        next(b, rows, hidden);
    const WideMat ids(b, rows, k), shares(b, rows, k);
    const auto branches = [&](const Mat& d, const Mat& e) {
        b.branches({.dense_in = d,
                    .gate = gate.get(),
                    .up = up.get(),
                    .down = down.get(),
                    .dense = dense.mat,
                    .h = h.mat,
                    .router = router,
                    .routing = {ids.mat, shares.mat, {}},
                    .experts_in = e,
                    .gate_up = first.get(),
                    .expert_down = second.get(),
                    .experts = sparse.mat});
    };
    // Made before: an upload, such as their first NaN, makes the backend forget what was quantised.
    const DeviceMat q(b, rows, 4 * dim), key(b, rows, 2 * dim), v(b, rows, 2 * dim);
    const auto inputs = [&](const Mat& x) {
        b.attention_inputs({.x = x,
                            .q_proj = wq.get(),
                            .k_proj = wk.get(),
                            .v_proj = wv.get(),
                            .q_norm = wh.get(),
                            .k_norm = wh.get(),
                            .frequencies = nullptr,
                            .positions = {},
                            .head_dim = dim,
                            .eps = 1e-6f,
                            .q = q.mat,
                            .k = key.mat,
                            .v = v.mat});
        Floats all = q.values();
        for (const DeviceMat* m : {&key, &v}) {
            const Floats more = m->values();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    };
    ASSERT_TRUE(b.begin_pass({.rows = rows, .numbers = {}, .segments = {}, .canvases = {}}).ok());
    b.after_attention({.branch = added.mat,
                       .norm = w2.get(),
                       .dense_norm = w2.get(),
                       .experts_norm = w1.get(),
                       .eps = 1e-6f,
                       .h = h.mat,
                       .dense = dense_in.mat,
                       .experts = experts_in.mat,
                       .router = &router});
    branches(dense_in.mat, experts_in.mat);
    const Floats dense_out = dense.values(), sparse_out = sparse.values();
    b.finish_layer({.residual = h.mat,
                    .dense = dense.mat,
                    .sparse = sparse.mat,
                    .dense_norm = w1.get(),
                    .sparse_norm = w1.get(),
                    .norm = w2.get(),
                    .scalar = ws.get(),
                    .eps = 1e-6f,
                    .out = out.mat},
                   1, w2.get(), next.mat);
    const Floats after = inputs(next.mat);
    EXPECT_EQ(after, inputs(DeviceMat(b, rows, hidden, next.values()).mat));
    const DeviceMat dense_copy(b, rows, hidden, dense_in.values()),
        experts_copy(b, rows, hidden, experts_in.values());
    branches(dense_copy.mat, experts_copy.mat);
    EXPECT_EQ(dense.values(), dense_out);
    EXPECT_EQ(sparse.values(), sparse_out);
    b.after_attention({.branch = added.mat,
                       .norm = w2.get(),
                       .dense_norm = w2.get(),
                       .experts_norm = w1.get(),
                       .eps = 1e-6f,
                       .h = out.mat,
                       .dense = dense_in.mat,
                       .experts = experts_in.mat,
                       .router = nullptr});
    // Other rows were quantised last, and the copies must not be taken for them.
    branches(dense_copy.mat, experts_copy.mat);
    EXPECT_EQ(dense.values(), dense_out);
    EXPECT_EQ(sparse.values(), sparse_out);
    ASSERT_TRUE(b.end_pass().ok());
}

// Where the parts of attention are merged, rows become E4M3 as well; the same rows from elsewhere give the
// same bits.
TEST_F(E4m3Pass, AttentionQuantisesWhereItMerges) {
    Backend& b = *device;
    for (const auto& [kv_heads, dim] : {std::pair<int, int>{8, 256}, {2, 512}}) {
        constexpr int heads = 16;
        const std::int64_t rows = 37, width = std::int64_t{heads} * dim,
                           kv_width = std::int64_t{kv_heads} * dim;
        const auto bytes = static_cast<std::size_t>(backend::page_tokens * kv_width) * 2;
        const auto keys = DeviceMat::take(b.allocate(bytes)), values = DeviceMat::take(b.allocate(bytes));
        void* const key_pages[] = {keys->data()};
        void* const value_pages[] = {values->data()};
        const backend::AttentionSegment segment{
            0, rows, {key_pages, value_pages, backend::page_tokens, Dtype::bf16}, 0};
        const std::vector<std::int32_t> begin(static_cast<std::size_t>(rows), 0),
            end(static_cast<std::size_t>(rows), static_cast<std::int32_t>(rows));
        const DeviceMat q(b, rows, width, activations(rows * width, 1 / std::sqrt(static_cast<float>(dim)))),
            k(b, rows, kv_width, activations(rows * kv_width)),
            v(b, rows, kv_width, activations(rows * kv_width)), attended(b, rows, width),
            merged(b, rows, 192), copied(b, rows, 192);
        const auto w = DeviceMat::take(b.prepare_projection(random({192, width}, 0.02f).view));
        b.attention({.q = q.mat,
                     .k = k.mat,
                     .v = v.mat,
                     .segments = std::span(&segment, 1),
                     .key_begin = begin,
                     .key_end = end,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = dim,
                     .out = attended.mat});
        b.project(attended.mat, *w, merged.mat);
        b.project(DeviceMat(b, rows, width, attended.values()).mat, *w, copied.mat);
        EXPECT_EQ(merged.values(), copied.values()) << dim;
        EXPECT_LT(relative_error(merged.values(), project(*reference, attended.values(), *weights.back())),
                  4e-3);
    }
}

// Without the option weights stay what they were: bf16 activations, no code of them.
TEST_F(E4m3Pass, OnlyWhereAskedFor) {
    const std::int64_t rows = 5, ins = 256, outs = 128;
    const Floats x = activations(rows * ins);
    const E4m3Weight& w = random({outs, ins}, 0.05f);
    const auto exact = backend::make_reference_backend(Precision::bf16);
    EXPECT_LE(relative_error(project(*plain, x, w), project(*exact, x, w)), 8e-3);
    EXPECT_GT(relative_error(project(*device, x, w), project(*exact, x, w)), 1e-2);
    const auto f32 = DeviceMat::take(backend::make_cuda_backend(Precision::f32, {.e4m3_activations = true}));
    EXPECT_LE(
        relative_error(project(*f32, x, w), project(*backend::make_reference_backend(Precision::f32), x, w)),
        1e-5);
    const auto generic = DeviceMat::take(
        backend::make_cuda_backend(Precision::bf16, {.hopper_kernels = false, .e4m3_activations = true}));
    EXPECT_LE(relative_error(project(*generic, x, w), project(*exact, x, w)), 8e-3);
}

}  // namespace
}  // namespace dgemma::testing
