// Passes that the device recorded and repeats give the bits of passes that ran as they came, whatever changed
// in between: temperatures, contexts, caches, other sequences.
#include <algorithm>

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "model/golden_model.h"
#include "support/shared.h"

namespace dgemma::testing {
namespace {

using backend::Precision;

class Passes : public ::testing::TestWithParam<Precision> {
  protected:
    static std::vector<std::int32_t> tokens(std::size_t n, int step) {
        std::vector<std::int32_t> ids(n);
        for (std::size_t i = 0; i < n; ++i)
            ids[i] = static_cast<std::int32_t>(300 + (i * static_cast<std::size_t>(step)) % 700);
        return ids;
    }
    [[nodiscard]] Dtype kv() const { return GetParam() == Precision::bf16 ? Dtype::bf16 : Dtype::f32; }
};

TEST_P(Passes, RepeatedOnesGiveTheSameBits) {
    LoadedModel m(demo_dir(), make_device({GetParam(), true}));
    LoadedModel fresh(demo_dir(), make_device({GetParam(), true}));
    model::KvCache cache = m.cache(256, kv()), twin = fresh.cache(256, kv());
    auto logits = m.logits(), twin_logits = fresh.logits();
    int step = 37;
    for (const std::size_t more : {100u, 1u, 150u, 250u, 3u, 256u}) {
        const std::vector<std::int32_t> ids = tokens(more, step++), canvas = tokens(128, step++);
        must(m.model.encode(cache, ids));
        must(fresh.model.encode(twin, ids));
        for (const bool self_condition : {false, true, true, true}) {
            const float temperature = 0.4f + 0.01f * static_cast<float>(step++);
            const auto got = m.denoise(cache, canvas, *logits, self_condition, temperature);
            // A probe keeps the twin from recording anything.
            Keep keep;
            const auto want = fresh.denoise(twin, canvas, *twin_logits, self_condition, temperature, &keep);
            ASSERT_EQ(got, want) << cache.length() << (self_condition ? " with" : " without")
                                 << " self-conditioning";
            for (std::size_t r = 0; r < canvas.size(); ++r) {
                ASSERT_EQ(logits->stats()[r].argmax, twin_logits->stats()[r].argmax);
                ASSERT_EQ(logits->stats()[r].entropy, twin_logits->stats()[r].entropy);
            }
        }
    }
}

// Canvases of several sequences change places and partners between passes.
TEST_P(Passes, PartnersMayChange) {
    LoadedModel m(demo_dir(), make_device({GetParam(), true}));
    std::vector<std::unique_ptr<model::KvCache>> caches;
    std::vector<std::unique_ptr<backend::Logits>> logits;
    std::vector<std::vector<std::int32_t>> canvases;
    std::vector<std::vector<float>> alone;
    for (int i = 0; i < 3; ++i) {
        caches.push_back(std::make_unique<model::KvCache>(m.config, *m.backend, 256, kv()));
        must(m.model.encode(*caches.back(), tokens(static_cast<std::size_t>(60 + 90 * i), 31 + i)));
        logits.push_back(m.logits());
        canvases.push_back(tokens(128, 11 + i));
        m.denoise(*caches[static_cast<std::size_t>(i)], canvases.back(), *logits.back(), false, 0.7f);
        alone.push_back(
            m.denoise(*caches[static_cast<std::size_t>(i)], canvases.back(), *logits.back(), true, 0.7f));
    }
    const std::vector<std::vector<std::size_t>> rounds = {{0, 1}, {0, 1}, {0, 1},    {2, 0},
                                                          {2, 0}, {2, 0}, {0, 1, 2}, {0, 1}};
    for (const auto& round : rounds) {
        for (const bool self_condition : {false, true}) {
            std::vector<model::Canvas> all;
            for (const std::size_t i : round)
                all.push_back({caches[i].get(), canvases[i], 0.7f, logits[i].get(), self_condition});
            must(m.model.denoise(all));
        }
        for (const std::size_t i : round) {
            std::vector<float> z;
            for (int r = 0; r < 128; ++r) {
                for (const float v : logits[i]->row(r)) z.push_back(v * 0.7f);
            }
            ASSERT_EQ(z, alone[i]) << "sequence " << i;
        }
    }
}

// So many that attention takes turns, of which some are conditioned on their own last pass and some are not.
TEST_P(Passes, ManyCanvasesTakeTurns) {
    LoadedModel m(demo_dir(), make_device({GetParam(), true}));
    constexpr std::size_t count = 33;
    ASSERT_GE(static_cast<std::int64_t>(count) * m.config.canvas_length, 2 * m.backend->attention_rows());
    std::vector<std::unique_ptr<model::KvCache>> caches;
    std::vector<std::unique_ptr<backend::Logits>> logits;
    std::vector<std::vector<std::int32_t>> canvases;
    std::vector<std::vector<RowStats>> alone;
    const auto conditioned = [](std::size_t i) { return i % 7 < 5; };
    for (std::size_t i = 0; i < count; ++i) {
        caches.push_back(std::make_unique<model::KvCache>(m.config, *m.backend, 256, kv()));
        must(m.model.encode(*caches.back(), tokens(20 + 37 * i % 200, 31 + static_cast<int>(i))));
        logits.push_back(m.logits());
        canvases.push_back(
            tokens(static_cast<std::size_t>(m.config.canvas_length), 11 + static_cast<int>(i)));
        for (const bool self_condition : {false, conditioned(i)}) {
            model::Canvas canvas{caches.back().get(), canvases.back(), 0.7f, logits.back().get(),
                                 self_condition};
            must(m.model.denoise(std::span(&canvas, 1)));
        }
        alone.emplace_back(logits.back()->stats().begin(), logits.back()->stats().end());
    }
    for (int round = 0; round < 3; ++round) {  // as they come, recorded, and repeated
        for (const bool second : {false, true}) {
            std::vector<model::Canvas> all;
            for (std::size_t i = 0; i < count; ++i)
                all.push_back(
                    {caches[i].get(), canvases[i], 0.7f, logits[i].get(), second && conditioned(i)});
            must(m.model.denoise(all));
        }
        for (std::size_t i = 0; i < count; ++i) {
            for (std::size_t r = 0; r < alone[i].size(); ++r) {
                const RowStats &got = logits[i]->stats()[r], &want = alone[i][r];
                ASSERT_EQ(got.argmax, want.argmax) << "canvas " << i << " row " << r << " round " << round;
                ASSERT_EQ(got.entropy, want.entropy) << "canvas " << i << " row " << r << " round " << round;
                ASSERT_EQ(got.max, want.max) << "canvas " << i << " row " << r << " round " << round;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Passes, ::testing::Values(Precision::f32, Precision::bf16),
                         [](const auto& precision) {
                             return precision.param == Precision::bf16 ? "bf16" : "f32";
                         });

}  // namespace
}  // namespace dgemma::testing
