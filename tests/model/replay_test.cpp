// Runs of random checkpoints are chaotic: they are fed step by step with the recorded canvases and, as
// self-conditioning, the recorded logits (goldens/hf/README). And two prompts in one batch, run freely.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "backend/random_data.h"
#include "diffusion/denoiser.h"
#include "diffusion/finalise.h"
#include "diffusion/sampler.h"
#include "diffusion/schedule.h"
#include "diffusion/tape.h"
#include "model/golden_model.h"
#include "support/shared.h"

namespace dgemma::testing {
namespace {

std::vector<std::int32_t> row_of(const std::vector<std::int32_t>& all, std::size_t row, std::size_t rows) {
    const auto n = static_cast<std::ptrdiff_t>(all.size() / rows);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row) * n;
    return {begin, begin + n};
}

class Replay : public ::testing::TestWithParam<Which> {};

TEST_P(Replay, TextRunsStepByStep) {
    const std::filesystem::path dir = *golden_dir("text-f32");
    const Golden golden(dir);
    LoadedModel m(dir / "checkpoint", make_backend(GetParam(), backend::Precision::f32));
    int steps_seen = 0, logits_seen = 0;
    for (const auto& [name, info] : golden.info().items()) {
        const auto prompts = info.at("prompt_ids").get<std::vector<std::vector<std::int32_t>>>();
        const auto& args = info.at("args");
        const auto stops = args.at("eos_token_id").get<std::vector<std::int32_t>>();
        const int max_steps = args.at("max_denoising_steps").get<int>();
        const float bound = args.at("sampler_config").at("entropy_bound").get<float>();
        for (std::size_t row = 0; row < prompts.size(); ++row) {
            const auto tensor = [&name = name](int step, const std::string& what) {
                return name + ".step" + std::to_string(step) + "." + what;
            };
            model::KvCache cache = m.cache();
            must(m.model.encode(cache, prompts[row]));
            auto logits = m.logits();
            int n = max_steps;  // counts down within a block
            std::vector<std::int32_t> last_argmax;
            for (int i = 0; golden.has(tensor(i, "argmax")); ++i, --n) {
                const std::int32_t start = golden.i32(tensor(i, "positions"))[0];
                const bool first = i == 0 || start != static_cast<std::int32_t>(cache.length());
                if (i > 0 && first) {
                    diffusion::finalise(last_argmax, false, stops, 0);
                    must(m.model.encode(cache, last_argmax));
                    n = max_steps;
                }
                ASSERT_EQ(start, cache.length());
                last_argmax = row_of(golden.i32(tensor(i, "argmax")), row, prompts.size());
                if (!first && !golden.has(tensor(i - 1, "logits")))
                    continue;  // its self-conditioning was not kept
                if (!first) {
                    std::vector<float> z = golden.f32(tensor(i - 1, "logits"));
                    z = {z.begin() + static_cast<std::ptrdiff_t>(row * z.size() / prompts.size()),
                         z.begin() + static_cast<std::ptrdiff_t>((row + 1) * z.size() / prompts.size())};
                    const float t = diffusion::temperature(n + 1, max_steps, args.at("t_min").get<double>(),
                                                           args.at("t_max").get<double>());
                    for (float& v : z) v /= t;
                    m.backend->set_logits(*logits, z);
                }
                const float t = diffusion::temperature(n, max_steps, args.at("t_min").get<double>(),
                                                       args.at("t_max").get<double>());
                const auto input = row_of(golden.i32(tensor(i, "input_canvas")), row, prompts.size());
                const std::vector<float> z = m.denoise(cache, input, *logits, !first, t);
                std::vector<float> entropies;
                const std::vector<float> recorded = golden.f32(tensor(i, "entropy"));
                for (std::size_t p = 0; p < input.size(); ++p) {
                    const RowStats& s = logits->stats()[p];
                    EXPECT_EQ(s.argmax, last_argmax[p]) << tensor(i, "argmax") << " " << p;
                    EXPECT_NEAR(s.entropy, recorded[row * input.size() + p], 1e-3)
                        << tensor(i, "entropy") << " " << p;
                    entropies.push_back(s.entropy);
                }
                const auto accept = diffusion::entropy_bound_mask(entropies, bound);
                EXPECT_EQ(std::vector<std::int32_t>(accept.begin(), accept.end()),
                          row_of(golden.i32(tensor(i, "accept_mask")), row, prompts.size()))
                    << tensor(i, "accept");
                if (golden.has(tensor(i, "logits"))) {
                    const std::vector<float> want = golden.f32(tensor(i, "logits"));
                    const std::size_t offset = row * want.size() / prompts.size();
                    float worst = 0;
                    for (std::size_t k = 0; k < z.size(); ++k)
                        worst = std::max(worst, std::abs(z[k] - want[offset + k]));
                    EXPECT_LE(worst, 1e-2f) << tensor(i, "logits");
                    ++logits_seen;
                }
                ++steps_seen;
            }
        }
    }
    EXPECT_GE(steps_seen, 14);
    EXPECT_GE(logits_seen, 7);
}

INSTANTIATE_TEST_SUITE_P(Backends, Replay, ::testing::ValuesIn(judged),
                         [](const ::testing::TestParamInfo<Which>& which) { return name_of(which.param); });

// Both rows in one call of each pass; the reference draws for both until both have converged.
TEST(Batch, CalmBatchOfTwoRunsFreely) {
    const std::filesystem::path dir = *golden_dir("calm-f32");
    const Golden golden(dir);
    LoadedModel m(dir / "checkpoint", make_backend(fastest, backend::Precision::f32));
    const std::string name = "gen_batch2";
    const auto& info = golden.info().at(name);
    const auto prompts = info.at("prompt_ids").get<std::vector<std::vector<std::int32_t>>>();
    const auto stops = info.at("args").at("eos_token_id").get<std::vector<std::int32_t>>();
    const std::vector<std::int32_t> all = golden.i32(name + ".random_canvases");
    const Shape shape = golden.shape(name + ".random_canvases");  // [draws, batch, canvas]
    const auto length = static_cast<std::size_t>(shape[2]);
    const std::size_t batch = prompts.size();
    ASSERT_EQ(batch, 2u);

    diffusion::Options options;
    const auto& args = info.at("args");
    options.max_steps = args.at("max_denoising_steps").get<int>();
    options.stability_threshold = args.at("stability_threshold").get<int>();
    options.confidence_threshold = args.at("confidence_threshold").get<float>();
    options.entropy_bound = args.at("sampler_config").at("entropy_bound").get<float>();
    options.guards = diffusion::Guards::none();
    std::vector<model::KvCache> caches;
    std::vector<diffusion::Tape> tapes;
    std::vector<std::unique_ptr<backend::Logits>> logits;
    std::vector<std::vector<std::int32_t>> fresh = prompts, sequences = prompts;
    std::vector<bool> finished(batch, false);
    for (std::size_t r = 0; r < batch; ++r) {
        caches.push_back(m.cache());
        diffusion::Tape::Canvases canvases;
        for (std::size_t d = 0; d < static_cast<std::size_t>(shape[0]); ++d) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>((d * batch + r) * length);
            canvases.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
        }
        tapes.emplace_back(std::move(canvases));
        logits.push_back(m.logits());
    }
    int steps = 0;
    const int blocks =
        diffusion::block_count(info.at("args").at("max_new_tokens").get<int>(), static_cast<int>(length));
    for (int block = 0; block < blocks && !(finished[0] && finished[1]); ++block) {
        std::vector<model::Prompt> pieces;
        for (std::size_t r = 0; r < batch; ++r) pieces.push_back({&caches[r], fresh[r]});
        must(m.model.encode(pieces));
        std::vector<diffusion::Denoiser> rows;
        for (std::size_t r = 0; r < batch; ++r) {
            rows.push_back(must(diffusion::Denoiser::start(
                options, {static_cast<int>(length), m.config.text.vocab_size}, tapes[r], {block, 0})));
        }
        while (!(rows[0].done() && rows[1].done())) {
            std::vector<model::Canvas> canvases;
            std::vector<std::size_t> active;
            for (std::size_t r = 0; r < batch; ++r) {
                if (rows[r].done()) {
                    tapes[r].skip_step();
                    continue;
                }
                canvases.push_back({&caches[r], rows[r].canvas(), rows[r].temperature(), logits[r].get(),
                                    rows[r].step() > 0});
                active.push_back(r);
            }
            must(m.model.denoise(canvases));
            for (const std::size_t r : active) {
                const std::string at = name + ".step" + std::to_string(steps) + ".";
                EXPECT_EQ(std::vector<std::int32_t>(rows[r].canvas().begin(), rows[r].canvas().end()),
                          row_of(golden.i32(at + "input_canvas"), r, batch))
                    << at << r;
                const auto outcome = must(rows[r].advance(*logits[r]));
                EXPECT_EQ(std::vector<std::int32_t>(rows[r].committed().begin(), rows[r].committed().end()),
                          row_of(golden.i32(at + "argmax"), r, batch))
                    << at << r;
                EXPECT_EQ(std::vector<std::int32_t>(outcome.accept.begin(), outcome.accept.end()),
                          row_of(golden.i32(at + "accept_mask"), r, batch))
                    << at << r;
            }
            ++steps;
        }
        for (std::size_t r = 0; r < batch; ++r) {
            fresh[r].assign(rows[r].committed().begin(), rows[r].committed().end());
            finished[r] = diffusion::finalise(fresh[r], finished[r], stops, 0);
            sequences[r].insert(sequences[r].end(), fresh[r].begin(), fresh[r].end());
        }
    }
    EXPECT_EQ(steps, info.at("steps").get<int>());
    for (std::size_t r = 0; r < batch; ++r)
        EXPECT_EQ(sequences[r], row_of(golden.i32(name + ".sequences"), r, batch));
}

// A row's bits depend neither on its neighbours, nor on how a prefill is cut, nor on the threads.
TEST(Batch, BitsDoNotDependOnCutsNeighboursOrThreads) {
    const std::filesystem::path dir = demo_dir();
    LoadedModel one(dir, make_backend(fastest, backend::Precision::f32, 1));
    LoadedModel many(dir, make_backend(fastest, backend::Precision::f32, 3));
    std::vector<std::int32_t> ids(333);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(300 + (i * 37) % 700);
    std::vector<std::int32_t> canvas(128);
    for (std::size_t i = 0; i < canvas.size(); ++i) canvas[i] = static_cast<std::int32_t>((i * 131) % 2048);

    model::KvCache whole = one.cache(512), cut = many.cache(512), other = many.cache(512);
    must(one.model.encode(whole, ids));
    std::size_t done = 0;
    for (const std::size_t piece : {1u, 63u, 64u, 5u, 130u, 70u}) {
        const std::span<const std::int32_t> part = std::span(ids).subspan(done, piece);
        const std::span<const std::int32_t> neighbour = std::span(ids).subspan(0, 1 + piece / 2);
        const model::Prompt both[] = {{&other, neighbour}, {&cut, part}};
        must(many.model.encode(both));
        done += piece;
    }
    ASSERT_EQ(done, ids.size());
    for (std::size_t l = 0; l < one.config.text.layers.size(); ++l) {
        EXPECT_EQ(cached(one, whole, l, true), cached(many, cut, l, true)) << l;
        EXPECT_EQ(cached(one, whole, l, false), cached(many, cut, l, false)) << l;
    }
    auto alone = one.logits();
    auto beside = many.logits(), stranger = many.logits();
    for (const bool self_condition : {false, true}) {
        one.denoise(whole, canvas, *alone, self_condition, 0.8f);
        model::Canvas both[] = {{&other, canvas, 0.7f, stranger.get(), self_condition},
                                {&cut, canvas, 0.8f, beside.get(), self_condition}};
        must(many.model.denoise(both));
        for (int r = 0; r < 128; ++r) {
            const auto a = alone->row(r), b = beside->row(r);
            ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << r;
        }
    }
}

// The sliding window of a canvas is anchored at the block: the last window - 1 cached keys, for every query
// (contract/model.md 6.3 and 9.5). With one sliding layer a token outside it changes nothing.
TEST(Masks, CanvasSeesTheLastWindowMinusOneKeys) {
    for (const Which which : judged) {
        auto backend = make_backend(which, backend::Precision::f32);
        constexpr int window = 8, heads = 2, kv_heads = 1, d = 16, cached_tokens = 20, canvas = 4;
        model::Config config;
        config.text.sliding_window = window;
        config.text.layers = {{model::LayerKind::sliding, d, kv_heads, 10000.0f, d / 2}};
        const auto attend = [&](int changed) {
            model::KvCache cache(config, *backend, 32, Dtype::f32);
            must(cache.reserve(cached_tokens));
            std::vector<float> k(static_cast<std::size_t>(cached_tokens * d)), v(k.size()),
                q(static_cast<std::size_t>(canvas * heads * d));
            for (std::size_t i = 0; i < k.size(); ++i)
                k[i] = std::sin(static_cast<float>(i)), v[i] = std::cos(static_cast<float>(3 * i));
            for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(7 * i)) * 0.3f;
            if (changed >= 0) v[static_cast<std::size_t>(changed * d)] += 1.0f;
            const DeviceMat keys(*backend, cached_tokens, d, k), values(*backend, cached_tokens, d, v);
            const backend::AttentionSegment stored{0, cached_tokens, cache.layer(0)};
            std::vector<std::int32_t> positions(cached_tokens);
            std::iota(positions.begin(), positions.end(), 0);
            backend->store_kv(keys.mat, values.mat, std::span(&stored, 1), positions, kv_heads);
            const DeviceMat queries(*backend, canvas, heads * d, q), attended(*backend, canvas, heads * d);
            const backend::AttentionSegment segment{0, canvas, cache.layer(0), cached_tokens};
            const std::vector<std::int32_t> begin(canvas, cached_tokens - (window - 1)),
                end(canvas, cached_tokens + canvas);
            backend->attention({.q = queries.mat,
                                .k = {keys.mat.data, canvas, d},
                                .v = {values.mat.data, canvas, d},
                                .segments = std::span(&segment, 1),
                                .key_begin = begin,
                                .key_end = end,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = d,
                                .out = attended.mat});
            return attended.values();
        };
        const auto base = attend(-1);
        EXPECT_EQ(attend(cached_tokens - window), base);         // P - 8: outside
        const auto seen = attend(cached_tokens - (window - 1));  // P - 7: the oldest key in sight
        for (int r = 0; r < canvas; ++r)
            EXPECT_NE(seen[static_cast<std::size_t>(r * heads * d)],
                      base[static_cast<std::size_t>(r * heads * d)])
                << r;
    }
}

}  // namespace
}  // namespace dgemma::testing
