#include "model/tensor_list.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::model {
namespace {

namespace fs = std::filesystem;
using testing::ScratchDir;
using Tensors = std::map<std::string, testing::TensorSpec>;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

Config config_of(const fs::path& directory) {
    const auto checkpoint = files::Checkpoint::open(directory);
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    auto config = parse_config(*checkpoint->config_text(), "config.json");
    EXPECT_TRUE(config) << config.error().message;
    return std::move(config).value();
}

Config calm() { return config_of(*testing::golden_dir("calm-f32") / "checkpoint"); }

// All tensors of the calm checkpoint, as F32.
Tensors all_of(const Config& config) {
    Tensors out;
    for (const auto& expected : expected_tensors(config)) out[expected.name] = {"F32", expected.shape};
    return out;
}

Result<TensorReport> check(const Config& config, const Tensors& tensors) {
    const ScratchDir scratch;
    scratch.write("model.safetensors", testing::safetensors_of(tensors));
    const auto checkpoint = files::Checkpoint::open(scratch.path());
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    return check_tensors(config, *checkpoint);
}

std::string refusal(const Config& config, const Tensors& tensors) {
    const auto result = check(config, tensors);
    if (result) return "accepted";
    EXPECT_EQ(result.error().kind, ErrorKind::invalid);
    return result.error().message;
}

TEST(TensorList, EveryGoldenCheckpointHoldsWhatIsExpectedAndNothingElse) {
    for (const char* name :
         {"demo", "calm-f32", "text-f32", "text-bf16-sharded", "vision-f32", "training-f32"}) {
        const auto golden = testing::golden_dir(name);
        if (std::string(name) != "demo" && !golden) continue;
        const fs::path dir = golden ? *golden / "checkpoint" : testing::demo_dir();
        const auto checkpoint = files::Checkpoint::open(dir);
        ASSERT_TRUE(checkpoint) << checkpoint.error().message;
        const auto report = check_tensors(config_of(dir), *checkpoint);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_TRUE(report->has_vision) << name;
        EXPECT_TRUE(report->unexpected.empty()) << name_list(report->unexpected);
        EXPECT_TRUE(report->ignored.empty()) << name_list(report->ignored);
    }
}

// contract/checkpoints.md 0 and contract/model.md 2: the numbers of the published model.
TEST(TensorList, TheRealModelHas1047Tensors) {
    const auto config = parse_config(
        R"({"model_type":"diffusion_gemma","text_config":{"hidden_size":2816,"intermediate_size":2112,
        "num_attention_heads":16,"num_key_value_heads":8,"num_global_key_value_heads":2,"num_experts":128,"top_k_experts":8,
        "moe_intermediate_size":704},"vision_config":{"hidden_size":1152,"intermediate_size":4304,"num_hidden_layers":27,
        "num_attention_heads":16,"num_key_value_heads":16,"head_dim":72,"standardize":true}})",
        "c");
    ASSERT_TRUE(config) << config.error().message;
    std::int64_t text = 0, vision = 0;
    std::size_t text_tensors = 0, vision_tensors = 0;
    for (const auto& tensor : expected_tensors(*config)) {
        const bool tower = tensor.group == TensorClass::vision;
        (tower ? vision : text) += elements_of(tensor.shape);
        (tower ? vision_tensors : text_tensors) += 1;
    }
    EXPECT_EQ(text_tensors, 691u);
    EXPECT_EQ(vision_tensors, 356u);
    EXPECT_EQ(text, 25'250'986'812);
    EXPECT_EQ(vision, 572'794'416);
}

TEST(TensorList, NamesWhatIsMissing) {
    const Config config = calm();
    for (const auto& expected : expected_tensors(config)) {
        // One sliding layer and one full one stand for all.
        const bool repeated = expected.name.find(".layers.") != std::string::npos &&
                              expected.name.find(".layers.0.") == std::string::npos &&
                              expected.name.find(".layers.2.") == std::string::npos;
        if (!expected.required || repeated) continue;
        Tensors tensors = all_of(config);
        tensors.erase(expected.name);
        EXPECT_SAYS(refusal(config, tensors), "1 tensor is missing: " + expected.name + ";");
    }
}

TEST(TensorList, AtMostTwentyNamesOfAKind) {
    const Config config = calm();
    const auto message = refusal(config, {{"x", {"F32", {1}}}});
    const auto expected = expected_tensors(config);
    const auto required =
        std::count_if(expected.begin(), expected.end(), [](const auto& tensor) { return tensor.required; });
    EXPECT_SAYS(message, std::to_string(required) + " tensors are missing");
    EXPECT_SAYS(message, "and " + std::to_string(required - 20) + " more; download");
    EXPECT_EQ(std::count(message.begin(), message.end(), ','), 19);
}

TEST(TensorList, NamesWrongShapesAndTypesTogether) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    tensors["model.decoder.norm.weight"].shape = {97};
    tensors["model.decoder.layers.0.router.scale"].dtype = "I32";
    tensors["model.decoder.layers.1.router.scale"].dtype = "F8_E4M3";
    tensors.erase("model.decoder.layers.0.layer_scalar");
    const auto message = refusal(config, tensors);
    EXPECT_SAYS(message, "model.decoder.norm.weight is [97] instead of [96]");
    EXPECT_SAYS(
        message,
        "model.decoder.layers.0.router.scale is i32 and model.decoder.layers.1.router.scale is f8_e4m3");
    EXPECT_SAYS(message, "1 tensor is missing: model.decoder.layers.0.layer_scalar");
}

TEST(TensorList, TheThreePlainTypesMayMix) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    int n = 0;
    for (auto& [name, spec] : tensors)
        spec.dtype = std::array{"F32", "F16", "BF16"}[static_cast<std::size_t>(n++ % 3)];
    EXPECT_TRUE(check(config, tensors));
}

TEST(TensorList, TheEncodersScalarsMayBeAbsent) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    for (int l = 0; l < 6; ++l)
        tensors.erase("model.encoder.language_model.layers." + std::to_string(l) + ".layer_scalar");
    EXPECT_EQ(tensors.size() + 6, all_of(config).size());
    EXPECT_TRUE(check(config, tensors));
}

TEST(TensorList, CopiesOfTiedTensorsAreIgnored) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    tensors["lm_head.weight"] = {"F32", {1}};
    tensors["model.encoder.language_model.embed_tokens.weight"] = {"I8", {7}};
    tensors["model.encoder.language_model.layers.0.self_attn.q_proj.weight"] = {"F32", {1}};
    tensors["model.encoder.vision_tower.encoder.layers.0.mlp.up_proj.input_max"] = {"F32", {1}};
    const auto report = check(config, tensors);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->ignored.size(), 4u);
    EXPECT_TRUE(report->unexpected.empty());
    // The scalar of a layer that is not there is not one of them.
    tensors["model.encoder.language_model.layers.9.layer_scalar"] = {"F32", {1}};
    EXPECT_EQ(check(config, tensors)->unexpected,
              std::vector<std::string>{"model.encoder.language_model.layers.9.layer_scalar"});
}

TEST(TensorList, UnexpectedTensorsAreNamedButNoError) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    // Layer 2 is full: its values are its raw keys.
    tensors["model.decoder.layers.2.self_attn.v_proj.weight"] = {"F32", {32, 96}};
    tensors["stray"] = {"I8", {1}};
    const auto report = check(config, tensors);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->unexpected,
              (std::vector<std::string>{"model.decoder.layers.2.self_attn.v_proj.weight", "stray"}));
}

TEST(TensorList, ExpertsMayEndInWeight) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    for (int l = 0; l < 6; ++l) {
        for (const char* name : {"gate_up_proj", "down_proj"}) {
            const std::string plain = "model.decoder.layers." + std::to_string(l) + ".experts." + name;
            tensors[plain + ".weight"] = tensors.at(plain);
            tensors.erase(plain);
        }
    }
    const auto report = check(config, tensors);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->unexpected.empty());
    tensors["model.decoder.layers.0.experts.down_proj.weight"].shape = {1, 1};
    EXPECT_SAYS(refusal(config, tensors),
                "model.decoder.layers.0.experts.down_proj.weight is [1, 1] instead of [8, 96, 32]");
}

TEST(TensorList, TheTowerMayBeAbsentButNotInPart) {
    const Config config = calm();
    Tensors tensors = all_of(config);
    const std::string projection = "model.encoder.embed_vision.embedding_projection.weight";
    tensors.erase(projection);
    EXPECT_SAYS(refusal(config, tensors), "1 tensor is missing: " + projection);
    for (const auto& expected : expected_tensors(config)) {
        if (expected.group == TensorClass::vision) tensors.erase(expected.name);
    }
    const auto report = check(config, tensors);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->has_vision);
    // Without a vision_config the tower's tensors are nobody's.
    Config text_only = config;
    text_only.vision.reset();
    EXPECT_EQ(check(text_only, all_of(config))->unexpected.size(),
              all_of(config).size() - all_of(text_only).size());
}

TEST(TensorList, QuantisedModelsAreUnsupported) {
    Config config = calm();
    config.quantization = "some-method";
    const auto by_config = check(config, all_of(config));
    ASSERT_FALSE(by_config);
    EXPECT_EQ(by_config.error().kind, ErrorKind::unsupported);
    EXPECT_SAYS(by_config.error().message, "\"some-method\"");
    config.quantization.clear();
    Tensors tensors = all_of(config);
    tensors["model.decoder.layers.0.mlp.up_proj.scales"] = {"BF16", {1}};
    EXPECT_EQ(check(config, tensors).error().kind, ErrorKind::unsupported);
}

TEST(NameList, CountsTheRest) {
    EXPECT_EQ(name_list({}), "");
    EXPECT_EQ(name_list({"a"}), "a");
    EXPECT_EQ(name_list({"a", "b"}), "a and b");
    EXPECT_EQ(name_list({"a", "b", "c"}, 3), "a, b and c");
    EXPECT_EQ(name_list({"a", "b", "c", "d"}, 2), "a, b and 2 more");
    EXPECT_EQ(name_list({"\x1b[2J"}), "\\x1B[2J");
}

}  // namespace
}  // namespace dgemma::model
