#include "engine/device.h"

#include <gtest/gtest.h>

#include "engine/synthetic_model.h"
#include "engine/verify.h"
#include "support/shared.h"

namespace dgemma::engine {
namespace {

TEST(Devices, AreNamed) {
    const auto cpu = choose_device("cpu");
    ASSERT_TRUE(cpu);
    EXPECT_EQ(cpu->backend, BackendKind::plain);
    const auto third = choose_device("cuda:3");  // whether it is there is found out when it is opened
    ASSERT_TRUE(third);
    EXPECT_EQ(third->backend, BackendKind::cuda);
    EXPECT_EQ(third->index, 3);
    for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"}) {
        const auto none = choose_device(name);
        ASSERT_FALSE(none) << name;
        EXPECT_EQ(none.error().kind, ErrorKind::usage) << name;
    }
}

// With a GPU or without one: `auto` takes what there is, and `cuda` says why where there is none.
TEST(Devices, AutoFallsBackToTheCpu) {
    const auto gpus = list_gpus();
    const auto any = choose_device("auto"), asked = choose_device("cuda");
    ASSERT_TRUE(any);
    if (asked) {
        EXPECT_EQ(any->backend, BackendKind::cuda);
        EXPECT_TRUE(gpus);
    } else {
        EXPECT_EQ(any->backend, BackendKind::plain);
        EXPECT_EQ(asked.error().kind, ErrorKind::unsupported);
        EXPECT_GT(asked.error().message.size(), 20u);
    }
}

TEST(Devices, SyntheticModelsNeedAGpu) {
    EXPECT_EQ(branch_formats("q4")->experts, Encoding::affine4);
    EXPECT_EQ(branch_formats("q4")->dense, Encoding::affine8);
    EXPECT_EQ(branch_formats("q5").error().kind, ErrorKind::usage);
    LoadOptions cpu;
    cpu.where = "cpu";
    EXPECT_EQ(synthesize_model("tiny", 1, "bf16", cpu).error().kind, ErrorKind::unsupported);
    EXPECT_EQ(synthesize_model("huge", 1, "bf16", cpu).error().kind, ErrorKind::usage);
}

// The CPU's threaded kernels in f32 against the scalar oracle: alike, but for the order of sums.
TEST(Verify, TheCpuAgreesWithTheOracle) {
    const auto checkpoint = files::Checkpoint::open(testing::demo_dir());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    VerifyOptions options;
    options.scalar = true;
    options.layers = 2;
    options.prompt_tokens = 9;
    const auto done = verify(*checkpoint, options);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->layers, 2);
    EXPECT_EQ(done->all_layers, 8);
    EXPECT_EQ(done->stages.size(), 3u * 7);
    for (const StageDifference& d : done->stages) {
        EXPECT_LE(d.relative_rms, 1e-4) << d.pass << " " << d.stage;
        EXPECT_EQ(d.broken, 0);
    }
    for (const HeadDifference& d : done->heads) {
        EXPECT_EQ(d.argmax_agreement, 1.0);
        EXPECT_LE(d.largest_kl, 1e-6);
    }
    options.layers = -1;
    EXPECT_EQ(verify(*checkpoint, options).error().kind, ErrorKind::usage);
}

}  // namespace
}  // namespace dgemma::engine
