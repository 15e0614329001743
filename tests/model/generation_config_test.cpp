#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "support/shared.h"

namespace dgemma::model {
namespace {

using nlohmann::json;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

GenerationConfig parsed(const json& config) {
    auto result = parse_generation_config(config.dump(), "g.json");
    if (!result) {
        ADD_FAILURE() << result.error().message;
        return {};
    }
    return std::move(result).value();
}

std::string refusal(const json& config, ErrorKind kind = ErrorKind::invalid) {
    const auto result = parse_generation_config(config.dump(), "g.json");
    if (result) return "accepted";
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    EXPECT_NE(result.error().message.find("g.json"), std::string::npos) << result.error().message;
    return result.error().message;
}

void expect_defaults(const GenerationConfig& g) {
    EXPECT_EQ(g.max_new_tokens, 256);
    EXPECT_EQ(g.max_denoising_steps, 48);
    EXPECT_EQ(g.sampler, SamplerKind::entropy_bound);
    EXPECT_EQ(g.entropy_bound, 0.1f);
    EXPECT_EQ(g.threshold, 0.9f);
    EXPECT_EQ(g.t_min, 0.4);
    EXPECT_EQ(g.t_max, 0.8);
    EXPECT_EQ(g.stability_threshold, 1);
    EXPECT_EQ(g.confidence_threshold, 0.005f);
    EXPECT_TRUE(g.eos_ids.empty());
    EXPECT_EQ(g.pad_id, 0);
    EXPECT_EQ(g.bos_id, 2);
}

TEST(GenerationConfig, AbsentAndNullKeysAreTheDefaults) {
    expect_defaults(parsed(json::object()));
    json nulls;
    for (const char* key :
         {"max_new_tokens", "max_denoising_steps", "sampler_config", "t_min", "t_max", "stability_threshold",
          "confidence_threshold", "eos_token_id", "pad_token_id", "bos_token_id",
          "linear_temperature_schedule_config", "diffusion_stopping_config"}) {
        nulls[key] = nullptr;
    }
    expect_defaults(parsed(nulls));
    std::ifstream in(*testing::golden_dir("text-f32") / "checkpoint/generation_config.json");
    expect_defaults(parsed(json::parse(in)));
}

TEST(GenerationConfig, ReadsTheDemo) {
    std::ifstream in(testing::demo_dir() / "generation_config.json");
    const auto g = parsed(json::parse(in));
    EXPECT_EQ(g.eos_ids, (std::vector<int>{1, 106, 50}));
    EXPECT_EQ(g.max_denoising_steps, 48);
}

TEST(GenerationConfig, ReadsBothSpellings) {
    const auto flat =
        parsed({{"t_min", 0.1}, {"t_max", 0.9}, {"stability_threshold", 3}, {"confidence_threshold", 0.5}});
    const auto nested =
        parsed({{"linear_temperature_schedule_config", {{"t_min", 0.1}, {"t_max", 0.9}}},
                {"diffusion_stopping_config", {{"stability_threshold", 3}, {"confidence_threshold", 0.5}}}});
    for (const auto& g : {flat, nested}) {
        EXPECT_EQ(g.t_min, 0.1);
        EXPECT_EQ(g.t_max, 0.9);
        EXPECT_EQ(g.stability_threshold, 3);
        EXPECT_EQ(g.confidence_threshold, 0.5f);
    }
    // Where both are given the newer one counts; a null of it does not.
    EXPECT_EQ(parsed({{"t_min", 0.2}, {"linear_temperature_schedule_config", {{"t_min", 0.1}}}}).t_min, 0.2);
    EXPECT_EQ(parsed({{"t_min", nullptr}, {"linear_temperature_schedule_config", {{"t_min", 0.1}}}}).t_min,
              0.1);
}

TEST(GenerationConfig, ReadsTheSamplers) {
    const auto bound =
        parsed({{"sampler_config", {{"_cls_name", "EntropyBoundSamplerConfig"}, {"entropy_bound", 0.25}}}});
    EXPECT_EQ(bound.sampler, SamplerKind::entropy_bound);
    EXPECT_EQ(bound.entropy_bound, 0.25f);
    EXPECT_EQ(parsed({{"sampler_config", {{"entropy_bound", 1}}}}).entropy_bound, 1.0f);
    const auto threshold = parsed(
        {{"sampler_config", {{"_cls_name", "ConfidenceThresholdSamplerConfig"}, {"threshold", 0.75}}}});
    EXPECT_EQ(threshold.sampler, SamplerKind::confidence_threshold);
    EXPECT_EQ(threshold.threshold, 0.75f);
    EXPECT_EQ(threshold.confidence_threshold, 0.005f);
}

TEST(GenerationConfig, RefusesAnUnknownSamplerByName) {
    EXPECT_SAYS(refusal({{"sampler_config", {{"_cls_name", "LoopSamplerConfig"}}}}, ErrorKind::unsupported),
                "\"LoopSamplerConfig\"");
    EXPECT_SAYS(refusal({{"sampler_config", {{"_cls_name", 7}}}}), "_cls_name");
    EXPECT_SAYS(refusal({{"sampler_config", "EntropyBound"}}), "sampler_config");
}

// The checks of contract/generation.md 2.
TEST(GenerationConfig, RefusesNonsenseByKey) {
    for (const char* key : {"max_new_tokens", "max_denoising_steps"}) {
        for (const json& value : {json(0), json(-1), json(1.5), json("x"), json(1e20), json(true)}) {
            EXPECT_SAYS(refusal({{key, value}}), key);
        }
    }
    for (const char* key : {"t_min", "t_max"}) {
        for (const json& value : {json(-0.1), json("x"), json(1e300), json::array()})
            EXPECT_SAYS(refusal({{key, value}}), key);
    }
    EXPECT_SAYS(refusal({{"t_min", 0.8}}), "greater than t_min");
    EXPECT_SAYS(refusal({{"t_min", 0.9}}), "greater than t_min");
    EXPECT_SAYS(refusal({{"linear_temperature_schedule_config", {{"t_max", 0.3}}}}),
                "linear_temperature_schedule_config.t_max");
    EXPECT_EQ(parsed({{"t_min", 0}}).t_min, 0.0);
    EXPECT_SAYS(refusal({{"stability_threshold", -1}}), "stability_threshold");
    EXPECT_EQ(parsed({{"stability_threshold", 0}}).stability_threshold, 0);
    EXPECT_SAYS(refusal({{"confidence_threshold", 0.0}}), "confidence_threshold");
    EXPECT_SAYS(refusal({{"sampler_config", {{"entropy_bound", 0.0}}}}), "sampler_config.entropy_bound");
    EXPECT_SAYS(refusal({{"sampler_config", {{"entropy_bound", -1}}}}), "sampler_config.entropy_bound");
    EXPECT_SAYS(refusal({{"sampler_config", {{"threshold", 1.5}}}}), "sampler_config.threshold");
    for (const json& value :
         {json(-1), json("x"), json::array({1, -1}), json::array({json::array()}), json(1e10)}) {
        EXPECT_SAYS(refusal({{"eos_token_id", value}}), "eos_token_id");
    }
    EXPECT_EQ(parsed({{"eos_token_id", 7}}).eos_ids, std::vector<int>{7});
    EXPECT_SAYS(parse_generation_config("{", "g.json").error().message, "no JSON");
}

}  // namespace
}  // namespace dgemma::model
