// `verify` finds nothing where there is nothing, and something where there is.
#include "engine/verify.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/demo_model.h"

namespace dgemma::testing {
namespace {

using namespace engine;

VerifyOptions two_layers() {
    VerifyOptions options;
    options.device = demo_load();
    options.layers = 2;
    options.prompt_tokens = 24;
    return options;
}

TEST(Verify, TheSameKernelsAreNoWayApart) {
    const auto done = verify(demo_checkpoint(), two_layers());
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->layers, 2);
    EXPECT_EQ(done->all_layers, 8);
    EXPECT_EQ(done->stages.size(), 21u);  // seven of each pass
    for (const StageDifference& d : done->stages) {
        EXPECT_EQ(d.largest, 0) << d.pass << " " << d.stage;
        EXPECT_EQ(d.broken, 0);
    }
    for (const HeadDifference& d : done->heads) {
        EXPECT_EQ(d.argmax_agreement, 1);
        EXPECT_EQ(d.largest_kl, 0);
        EXPECT_EQ(d.entropy, 0);
    }
}

TEST(Verify, OtherRoundingIsSeenAndBounded) {
    VerifyOptions options = two_layers();
    options.device.precision = backend::Precision::bf16;
    options.scalar = true;
    const auto done = verify(demo_checkpoint(), options);
    ASSERT_TRUE(done) << done.error().message;
    for (const StageDifference& d : done->stages) {
        if (d.stage == "input" && d.pass != "step 2") continue;  // embeddings: nothing is rounded yet
        EXPECT_GT(d.relative_rms, 1e-5) << d.pass << " " << d.stage;
        EXPECT_LT(d.relative_rms, 0.05) << d.pass << " " << d.stage;
        EXPECT_GT(d.cosine, 0.999);
    }
    for (const HeadDifference& d : done->heads) {
        EXPECT_GT(d.mean_kl, 0);
        EXPECT_LE(d.mean_kl, d.largest_kl);
        EXPECT_LT(d.largest_kl, 0.05);
    }
}

TEST(Verify, KeepsWhatBothSidesComputedWhereAsked) {
    VerifyOptions options = two_layers();
    EXPECT_TRUE(verify(demo_checkpoint(), options)->cpu_values.empty());
    options.keep_values = true;
    const auto done = verify(demo_checkpoint(), options);
    ASSERT_TRUE(done);
    const auto& config = demo_model().config;
    const auto hidden = static_cast<std::size_t>(config.text.hidden_size);
    const auto canvas = static_cast<std::size_t>(config.canvas_length);
    for (const AllValues* side : {&done->device_values, &done->cpu_values}) {
        EXPECT_EQ(side->at("prefill.layer_01.attention").values.size(), 24 * hidden);
        EXPECT_EQ(side->at("step_2.layer_00.experts").values.size(), canvas * hidden);
        EXPECT_EQ(side->at("step_1.entropy").values.size(), canvas);
        const StageValues& logits = side->at("step_1.logits");
        EXPECT_EQ(logits.values.size(),
                  static_cast<std::size_t>(logits.rows) * static_cast<std::size_t>(config.text.vocab_size));
    }
    EXPECT_EQ(done->device_values.at("step_1.hidden").values, done->cpu_values.at("step_1.hidden").values);
}

TEST(Verify, TakesAsManyLayersAsTheTimeAllows) {
    VerifyOptions options = two_layers();
    options.layers = 0;
    options.seconds = 1e-6;
    EXPECT_EQ(verify(demo_checkpoint(), options)->layers, 1);
    options.seconds = 1e6;
    EXPECT_EQ(verify(demo_checkpoint(), options)->layers, 8);
    options.layers = 99;
    EXPECT_EQ(verify(demo_checkpoint(), options)->layers, 8);
}

}  // namespace
}  // namespace dgemma::testing
