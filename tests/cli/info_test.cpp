#include "cli/info.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::cli {
namespace {

using nlohmann::json;
using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

json json_of(const InfoReport& report) {
    std::ostringstream out;
    print_json(report, out);
    const std::string text = out.str();
    EXPECT_EQ(text.find('\n'), text.size() - 1);
    return json::parse(text);
}

std::string text_of(const InfoReport& report) {
    std::ostringstream out;
    print_text(report, out);
    return out.str();
}

TEST(Info, SumsTheDemo) {
    const auto report = inspect(testing::demo_dir());
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->problem);
    EXPECT_TRUE(report->unexpected.empty());
    EXPECT_EQ(report->parameters, 12'213'600);
    EXPECT_EQ(report->weight_bytes, 2 * report->parameters);
    std::int64_t tensors = 0, bytes = 0;
    for (const auto& sum : report->tensors) {
        tensors += sum.tensors;
        bytes += sum.bytes;
        EXPECT_EQ(sum.format, "bf16");
    }
    EXPECT_EQ(tensors, 232);
    EXPECT_EQ(bytes, report->weight_bytes);
    EXPECT_EQ(report->stop_ids, (std::vector<int>{1, 106, 50}));
    // Two full layers of one head of 128, keys and values.
    EXPECT_EQ(report->bf16_bytes_per_token, 2 * 2 * 128 * 2);
    EXPECT_EQ(report->f32_bytes_per_token, 2 * report->bf16_bytes_per_token);
    ASSERT_EQ(report->caches.size(), 2u);  // 32,768 tokens are beyond its limit
    EXPECT_EQ(report->caches[1].context, 4096);
    EXPECT_EQ(report->caches[1].bf16_bytes - report->caches[0].bf16_bytes,
              (4096 - 1024) * report->bf16_bytes_per_token);

    const json object = json_of(*report);
    EXPECT_EQ(object["parameters"], 12'213'600);
    EXPECT_EQ(object["layers"].size(), 8u);
    EXPECT_EQ(object["layers"][3]["kind"], "full");
    EXPECT_EQ(object["generation"]["entropy_bound"], 0.1);
    EXPECT_EQ(object["tensors"][0]["class"], "embedding");
    EXPECT_TRUE(object["problem"].is_null());
    const std::string text = text_of(*report);
    EXPECT_SAYS(text, "DiffusionGemmaForBlockDiffusion");
    EXPECT_SAYS(text, "12,213,600");
    EXPECT_SAYS(text, "2 full: head 128, 1 KV head, theta 1e+06, 16 of 64 pairs rotate: 3 7");
    EXPECT_EQ(text.find("cannot be run"), std::string::npos);
}

TEST(Info, SaysWhatCannotBeRunAndStillDescribesIt) {
    const ScratchDir scratch;
    scratch.copy_from(testing::demo_dir());
    json config = json::parse(std::string(R"({"quantization":{"bits":4,"group_size":64}})"));
    auto demo = inspect(testing::demo_dir());
    ASSERT_TRUE(demo);
    {
        const auto checkpoint_config = testing::demo_dir() / "config.json";
        std::ifstream in(checkpoint_config);
        json merged = json::parse(in);
        merged.merge_patch(config);
        scratch.write("config.json", merged.dump());
    }
    const auto report = inspect(scratch.path());
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_TRUE(report->problem);
    EXPECT_EQ(report->problem->kind, ErrorKind::unsupported);
    EXPECT_EQ(report->parameters, demo->parameters);
    EXPECT_SAYS(text_of(*report), "cannot be run: The model in");
    EXPECT_SAYS(json_of(*report)["problem"].get<std::string>(), "MLX");
}

TEST(Info, NamesUnexpectedTensorsAndForeignFiles) {
    const ScratchDir scratch;
    scratch.copy_from(*testing::golden_dir("text-f32") / "checkpoint");
    std::filesystem::rename(scratch.path() / "model.safetensors",
                            scratch.path() / "model-00001-of-00002.safetensors");
    scratch.write(
        "model-00002-of-00002.safetensors",
        testing::safetensors_of({{"lm_head.weight", {"F32", {2}}}, {"some.\xc3\xa9tensor", {"I8", {3}}}}));
    scratch.write("adapter.safetensors", "x");
    std::filesystem::remove(scratch.path() / "generation_config.json");
    const auto report = inspect(scratch.path());
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->problem);
    EXPECT_EQ(report->unexpected, std::vector<std::string>{"some.\xc3\xa9tensor"});
    EXPECT_EQ(report->ignored_files, std::vector<std::string>{"adapter.safetensors"});
    EXPECT_EQ(report->tensors.back().group, "ignored");
    EXPECT_EQ(report->tensors[report->tensors.size() - 2].group, "unexpected");
    EXPECT_EQ(report->stop_ids, std::vector<int>{1});
    const std::string text = text_of(*report);
    EXPECT_SAYS(text, "unexpected: some.étensor");
    EXPECT_SAYS(text, "adapter.safetensors");
    EXPECT_SAYS(text, "no generation_config.json");
}

TEST(Info, RefusesWhatItCannotDescribe) {
    const ScratchDir scratch;
    EXPECT_EQ(inspect(scratch.path()).error().kind, ErrorKind::not_found);
    scratch.write("model.safetensors", testing::safetensors_of({{"a", {"F32", {2}}}}));
    EXPECT_SAYS(inspect(scratch.path()).error().message, "config.json");
    scratch.write("config.json", R"({"model_type":"llama"})");
    EXPECT_EQ(inspect(scratch.path()).error().kind, ErrorKind::unsupported);
}

TEST(Info, TheWildestConfigurationHasASizeToo) {
    model::TextConfig text;
    text.sliding_window = 1 << 30;
    for (int l = 0; l < 1024; ++l) {
        model::LayerConfig layer;
        layer.kind = model::LayerKind::full;
        layer.kv_heads = 1024;
        layer.head_dim = 4096;
        text.layers.push_back(layer);
    }
    EXPECT_GT(cache_size(text, 1 << 30).f32_bytes, std::int64_t{1} << 60);
    text.layers.resize(1);
    EXPECT_EQ(cache_size(text, 1000).bf16_bytes, std::int64_t{1000} * 2 * 1024 * 4096 * 2);
}

}  // namespace
}  // namespace dgemma::cli
