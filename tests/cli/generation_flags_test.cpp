#include "cli/generation_flags.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace dgemma::cli {
namespace {

Arguments parsed(std::vector<std::string> words) {
    words.insert(words.begin(), "ask");
    auto result = Arguments::parse(words, {});
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    return result ? std::move(result).value() : Arguments();
}

TEST(GenerationFlags, WhatIsNotGivenIsTheCheckpoints) {
    diffusion::Options own;
    own.max_steps = 17;
    own.entropy_bound = 0.3f;
    own.sampler = diffusion::Sampler::confidence_threshold;
    const auto request = request_of(parsed({}), own);
    ASSERT_TRUE(request);
    EXPECT_EQ(request->diffusion.max_steps, 17);
    EXPECT_EQ(request->diffusion.entropy_bound, 0.3f);
    EXPECT_EQ(request->diffusion.sampler, diffusion::Sampler::confidence_threshold);
    EXPECT_EQ(request->max_tokens, 0);
    EXPECT_EQ(request->canvas_length, 0);
    EXPECT_FALSE(request->shrink_canvas || request->exact);
}

TEST(GenerationFlags, EveryFlagHasItsEffect) {
    const auto request = request_of(
        parsed({"--steps=9", "--seed=18446744073709551615", "--entropy-bound=0.5", "--threshold=0.7",
                "--confidence-threshold=0.02", "--temperature=1.5", "--sampler=confidence-threshold",
                "--noise=mlx", "--max-tokens=33", "--canvas-length=64", "--shrink-canvas",
                "--guard=entropy_stop", "--no-guard=last_step"}),
        {});
    ASSERT_TRUE(request);
    EXPECT_EQ(request->diffusion.max_steps, 9);
    EXPECT_EQ(request->diffusion.seed, 18446744073709551615u);
    EXPECT_EQ(request->diffusion.entropy_bound, 0.5f);
    EXPECT_EQ(request->diffusion.threshold, 0.7f);
    EXPECT_EQ(request->diffusion.confidence_threshold, 0.02f);
    EXPECT_EQ(request->diffusion.temperature, 1.5f);
    EXPECT_EQ(request->diffusion.sampler, diffusion::Sampler::confidence_threshold);
    EXPECT_EQ(request->diffusion.noise, diffusion::Noise::mlx);
    EXPECT_EQ(request->max_tokens, 33);
    EXPECT_EQ(request->canvas_length, 64);
    EXPECT_TRUE(request->shrink_canvas);
    EXPECT_TRUE(request->diffusion.guards.entropy_stop);
    EXPECT_FALSE(request->diffusion.guards.last_step);
    EXPECT_TRUE(request->diffusion.guards.degenerate_gate);

    const auto shrink = request_of(parsed({"--canvas-length=shrink"}), {});
    EXPECT_TRUE(shrink->shrink_canvas);
    EXPECT_EQ(shrink->canvas_length, 0);
    const auto alone = request_of(parsed({"--no-guard", "all", "--guard", "last-step"}), {});
    EXPECT_TRUE(alone->diffusion.guards.last_step);
    EXPECT_FALSE(alone->diffusion.guards.degenerate_gate);

    const auto load =
        load_options(parsed({"--threads=3", "--ctx=99", "--backend=reference", "--precision=bf16"}));
    EXPECT_EQ(load.threads, 3);
    EXPECT_EQ(load.context, 99);
    EXPECT_EQ(load.backend, engine::BackendKind::reference);
    EXPECT_EQ(load.precision, backend::Precision::bf16);
}

TEST(GenerationFlags, ContradictionsAreRefused) {
    const auto both = request_of(parsed({"--exact", "--guard", "last_step"}), {});
    ASSERT_FALSE(both);
    EXPECT_EQ(both.error().kind, ErrorKind::usage);
    EXPECT_TRUE(request_of(parsed({"--exact", "--no-guard", "last_step"}), {}));
}

}  // namespace
}  // namespace dgemma::cli
