#include "diffusion/options.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/denoiser.h"
#include "diffusion/noise_counter.h"
#include "diffusion/scripted_rows.h"

namespace dgemma::diffusion {
namespace {

TEST(Options, NonsenseIsRefusedByName) {
    const std::vector<std::pair<std::string, std::function<void(Options&)>>> cases = {
        {"max_steps", [](Options& o) { o.max_steps = 0; }},
        {"entropy_bound", [](Options& o) { o.entropy_bound = 0; }},
        {"entropy_bound", [](Options& o) { o.entropy_bound = std::numeric_limits<float>::quiet_NaN(); }},
        {"threshold", [](Options& o) { o.threshold = 1.1f; }},
        {"t_min", [](Options& o) { o.t_min = -0.1; }},
        {"t_max", [](Options& o) { o.t_max = 0.4; }},
        {"t_max", [](Options& o) { o.t_max = std::numeric_limits<double>::infinity(); }},
        {"32-bit", [](Options& o) { o.t_min = 0, o.t_max = 1e-60; }},
        {"32-bit", [](Options& o) { o.t_max = 1e300; }},
        {"stability_threshold", [](Options& o) { o.stability_threshold = -1; }},
        {"confidence_threshold", [](Options& o) { o.confidence_threshold = 0; }},
        {"temperature", [](Options& o) { o.temperature = -1; }},
        {"empty_reply_rerolls", [](Options& o) { o.guards.empty_reply_rerolls = -1; }},
        {"hard_trim_floor", [](Options& o) { o.guards.hard_trim_floor = 2; }},
    };
    CounterNoise noise(1, kVocabulary);
    for (const auto& [name, spoil] : cases) {
        Options options;
        ASSERT_TRUE(check(options));
        spoil(options);
        const auto denoiser = Denoiser::start(options, canvas_of(3), noise, {});
        ASSERT_FALSE(denoiser) << name;
        EXPECT_EQ(denoiser.error().kind, ErrorKind::usage);
        EXPECT_NE(denoiser.error().message.find(name), std::string::npos) << denoiser.error().message;
    }
    EXPECT_FALSE(Denoiser::start(Options{}, {.length = 0, .vocabulary = 8}, noise, {}));
    EXPECT_FALSE(Denoiser::start(Options{}, {.length = 8, .vocabulary = 0}, noise, {}));
}

TEST(Options, NamesGoBothWays) {
    for (const Sampler sampler : {Sampler::entropy_bound, Sampler::confidence_threshold})
        EXPECT_EQ(sampler_named(name_of(sampler)), sampler);
    for (const Noise noise : {Noise::counter, Noise::mlx, Noise::torch_cpu})
        EXPECT_EQ(noise_named(name_of(noise)), noise);
    EXPECT_EQ(sampler_named("ddim"), std::nullopt);
    EXPECT_EQ(noise_named(""), std::nullopt);
}

}  // namespace
}  // namespace dgemma::diffusion
