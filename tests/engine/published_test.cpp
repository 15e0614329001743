// What is published of the real model, without the real weights: its numbers with themselves, and the pass
// that is compared with a golden.
#include "engine/published.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "engine/demo_model.h"
#include "engine/loaded_model.h"
#include "model/synthetic.h"
#include "support/shared.h"

namespace dgemma::testing {
namespace {

using namespace engine;

std::vector<float> flat(std::span<const PublishedRow> rows) {
    std::vector<float> out;
    for (const PublishedRow& row : rows) out.insert(out.end(), row.logits.begin(), row.logits.end());
    return out;
}

TEST(Published, LogitsAreTakenFromTheirTable) {
    ASSERT_NE(published_logits(30), nullptr);
    ASSERT_NE(published_logits(6), nullptr);
    EXPECT_EQ(published_logits(7), nullptr);
    for (const int layers : {6, 30}) {
        const PublishedLogits& logits = *published_logits(layers);
        ASSERT_EQ(logits.rows.size(), 10u);
        for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(logits.rows[i].row, static_cast<int>(i));
        const LogitComparison same = compare_logits(flat(logits.rows), logits.rows);
        EXPECT_EQ(same.largest, 0);
        EXPECT_EQ(same.relative_rms, 0);
        EXPECT_NEAR(same.cosine, 1, 1e-12);
        EXPECT_EQ(same.broken, 0);
    }
    // bf16 numbers before a cap of 30: each of the six layers' table has an inverse with 8 bits.
    for (const float z : flat(published_logits(6)->rows)) {
        const double x = 30 * std::atanh(static_cast<double>(z) / 30);
        if (std::abs(z) > 29.9) continue;  // f32 does not tell any more
        const double unit = std::exp2(std::floor(std::log2(std::abs(x))) - 7);
        EXPECT_NEAR(x / unit, std::round(x / unit), 0.02) << z;
    }
}

TEST(Published, DifferencesAreSeenBeforeTheSoftcap) {
    const PublishedLogits& logits = *published_logits(6);
    std::vector<float> got = flat(logits.rows);
    // At 29.9 a hundredth is more than at 0: 30 atanh(z / 30) rises there 150 times as fast.
    const auto largest =
        std::max_element(got.begin(), got.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    const auto smallest =
        std::min_element(got.begin(), got.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float top = *largest;
    *largest -= std::copysign(0.05f, top);
    const LogitComparison high = compare_logits(got, logits.rows);
    EXPECT_NEAR(high.largest, 0.05, 1e-5);
    *largest = top;
    *smallest += 0.05f;
    const LogitComparison low = compare_logits(got, logits.rows);
    EXPECT_NEAR(low.largest, 0.05, 1e-5);
    EXPECT_GT(high.relative_rms, 50 * low.relative_rms);
    EXPECT_LT(high.cosine, low.cosine);
}

TEST(Published, WhatIsNotFiniteIsCountedAndTheCapItselfIsNot) {
    const PublishedLogits& logits = *published_logits(30);
    std::vector<float> got = flat(logits.rows);
    got[3] = std::numeric_limits<float>::quiet_NaN();
    got[7] = std::numeric_limits<float>::infinity();
    got[9] = kPublishedSoftcap;  // as tanh gives it in f32
    const LogitComparison compared = compare_logits(got, logits.rows);
    EXPECT_EQ(compared.broken, 2);
    EXPECT_TRUE(std::isfinite(compared.relative_rms));
    EXPECT_GT(compared.largest, 20);
    EXPECT_EQ(compare_logits({}, logits.rows).broken, 120);
}

TEST(Published, ShapesAreThoseOfThePublishedModelOnly) {
    const auto config_of = [](const char* preset, int layers) {
        return model::parse_config(model::preset_config(preset, layers).value(), "config.json").value();
    };
    const files::Checkpoint& plain = demo_checkpoint();  // any that is no pack
    EXPECT_TRUE(has_published_shapes(config_of("26b", 30), plain));
    EXPECT_FALSE(has_published_shapes(config_of("26b", 6), plain));
    EXPECT_FALSE(has_published_shapes(config_of("demo", 0), plain));
    model::Config other = config_of("26b", 30);
    other.text.experts = 64;
    EXPECT_FALSE(has_published_shapes(other, plain));
}

// The pass that is compared: a golden's first step, whose logits the reference gave.
TEST(Published, FirstPassIsThatOfTheReference) {
    const std::filesystem::path dir = *golden_dir("text-f32");
    const Golden golden(dir);
    const files::Checkpoint checkpoint = files::Checkpoint::open(dir / "checkpoint").value();
    const auto loaded = load_model(checkpoint, {.threads = 2}).value();
    const std::vector<std::int32_t> prompt = golden.i32("static40.ids"),
                                    canvas = golden.i32("static40.canvas");
    const std::vector<float> want = golden.f32("static40.decoder.step1.logits");
    const std::vector<int> rows = {0, 3, static_cast<int>(canvas.size()) - 1};
    constexpr int kColumns = 12;
    const auto got = first_pass_logits(*loaded, prompt, canvas, rows, kColumns);
    ASSERT_TRUE(got) << got.error().message;
    ASSERT_EQ(got->size(), rows.size() * kColumns);
    const std::size_t vocab = want.size() / canvas.size();
    for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::size_t c = 0; c < kColumns; ++c) {
            const float expected = want[static_cast<std::size_t>(rows[r]) * vocab + c];
            EXPECT_NEAR((*got)[r * kColumns + c], expected, 3e-4 * 30) << rows[r] << ", " << c;
        }
    }
}

}  // namespace
}  // namespace dgemma::testing
