#include "model/config.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/shared.h"

namespace dgemma::model {
namespace {

using nlohmann::json;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

json demo() {
    std::ifstream in(testing::demo_dir() / "config.json");
    return json::parse(in);
}

// The demo's configuration with something changed; a null takes a key away.
Config parsed(const json& change) {
    json config = demo();
    config.merge_patch(change);
    auto result = parse_config(config.dump(), "config.json");
    if (!result) {
        ADD_FAILURE() << result.error().message;
        return {};
    }
    return std::move(result).value();
}

std::string refusal_of(const std::string& text, ErrorKind kind = ErrorKind::invalid) {
    const auto result = parse_config(text, "dir/config.json");
    if (result) return "accepted";
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    EXPECT_NE(result.error().message.find("dir/config.json"), std::string::npos) << result.error().message;
    return result.error().message;
}

std::string refusal(const json& change, ErrorKind kind = ErrorKind::invalid) {
    json config = demo();
    config.merge_patch(change);
    return refusal_of(config.dump(), kind);
}

TEST(Config, ReadsTheDemo) {
    const Config config = parsed(json::object());
    EXPECT_EQ(config.model_type, "diffusion_gemma");
    EXPECT_EQ(config.architecture, "DiffusionGemmaForBlockDiffusion");
    EXPECT_EQ(config.canvas_length, 128);
    EXPECT_EQ(config.dtype, Dtype::bf16);
    EXPECT_EQ(config.boi_id, 2045);
    EXPECT_EQ(config.image_id, 2046);
    EXPECT_EQ(config.eoi_id, 2047);
    EXPECT_EQ(config.pad_id, 0);
    EXPECT_EQ(config.bos_id, 2);
    EXPECT_EQ(config.eos_ids, std::vector<int>{1});
    EXPECT_TRUE(config.quantization.empty());
    const TextConfig& text = config.text;
    EXPECT_EQ(text.vocab_size, 2048);
    EXPECT_EQ(text.hidden_size, 256);
    EXPECT_EQ(text.intermediate_size, 448);
    EXPECT_EQ(text.self_conditioning_size, 448);
    EXPECT_EQ(text.heads, 4);
    EXPECT_EQ(text.sliding_window, 129);
    EXPECT_EQ(text.experts, 16);
    EXPECT_EQ(text.top_k, 4);
    EXPECT_EQ(text.expert_size, 64);
    EXPECT_EQ(text.max_positions, 4096);
    EXPECT_EQ(text.final_softcap, 30.0f);
    EXPECT_EQ(text.rms_eps, 1e-6f);
    EXPECT_TRUE(text.bidirectional_images);
    ASSERT_EQ(text.layers.size(), 8u);
    for (std::size_t l = 0; l < 8; ++l) {
        const bool full = l == 3 || l == 7;
        const LayerConfig& layer = text.layers[l];
        EXPECT_EQ(layer.kind, full ? LayerKind::full : LayerKind::sliding) << l;
        EXPECT_EQ(layer.head_dim, full ? 128 : 64);
        EXPECT_EQ(layer.kv_heads, full ? 1 : 2);
        EXPECT_EQ(layer.rope_theta, full ? 1e6f : 1e4f);
        EXPECT_EQ(layer.rotated_pairs, full ? 16 : 32);
    }
    ASSERT_TRUE(config.vision);
    EXPECT_EQ(config.vision->layers, 3);
    EXPECT_EQ(config.vision->head_dim, 24);
    EXPECT_EQ(config.vision->soft_tokens, 280);
    EXPECT_EQ(config.vision->rope_theta, 100.0f);
    EXPECT_TRUE(config.vision->standardize);
}

// Only what has no default of its own, as the real model's first configuration spells it.
TEST(Config, AbsentKeysTakeTheClassDefaults) {
    const auto config = parse_config(R"({"model_type":"diffusion_gemma","text_config":{
        "num_experts":128,"top_k_experts":8,"moe_intermediate_size":704}})",
                                     "c");
    ASSERT_TRUE(config) << config.error().message;
    const TextConfig& text = config->text;
    EXPECT_EQ(text.vocab_size, 262144);
    EXPECT_EQ(text.hidden_size, 2304);
    EXPECT_EQ(text.intermediate_size, 9216);
    EXPECT_EQ(text.heads, 8);
    EXPECT_EQ(text.sliding_window, 512);
    EXPECT_EQ(text.max_positions, 131072);
    EXPECT_FALSE(text.bidirectional_images);
    EXPECT_FALSE(config->vision);
    EXPECT_EQ(config->canvas_length, 256);
    EXPECT_EQ(config->image_id, 258880);
    EXPECT_EQ(config->eos_ids, std::vector<int>{1});
    ASSERT_EQ(text.layers.size(), 30u);
    for (std::size_t l = 0; l < 30; ++l) {
        const bool full = l % 6 == 5;
        EXPECT_EQ(text.layers[l].kind == LayerKind::full, full) << l;
        EXPECT_EQ(text.layers[l].head_dim, full ? 512 : 256) << l;
        EXPECT_EQ(text.layers[l].kv_heads, 4) << l;
        EXPECT_EQ(text.layers[l].rotated_pairs, full ? 64 : 128) << l;
    }
}

TEST(Config, ReadsTheGlobalSpelling) {
    json config = demo();
    config["text_config"].erase("per_layer_config");
    config["text_config"]["global_head_dim"] = 128;
    config["text_config"]["num_global_key_value_heads"] = 1;
    const auto result = parse_config(config.dump(), "c");
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->text.layers[3].head_dim, 128);
    EXPECT_EQ(result->text.layers[3].kv_heads, 1);
    EXPECT_EQ(result->text.layers[2].head_dim, 64);
    // null means the sliding layers' number
    config["text_config"]["num_global_key_value_heads"] = nullptr;
    EXPECT_EQ(parse_config(config.dump(), "c")->text.layers[3].kv_heads, 2);
}

TEST(Config, AnEntryPerLayerWinsOverEverything) {
    const Config config =
        parsed({{"text_config",
                 {{"global_head_dim", 32},
                  {"per_layer_config",
                   {{"0", {{"head_dim", 8}}}, {"3", nullptr}, {"7", {{"num_key_value_heads", 4}}}}}}}});
    EXPECT_EQ(config.text.layers[0].head_dim, 8);
    EXPECT_EQ(config.text.layers[0].kv_heads, 2);
    EXPECT_EQ(config.text.layers[0].rotated_pairs, 4);
    EXPECT_EQ(config.text.layers[3].head_dim, 32);
    EXPECT_EQ(config.text.layers[7].head_dim, 128);
    EXPECT_EQ(config.text.layers[7].kv_heads, 4);
    // In this spelling a full layer without an entry is like the others.
    EXPECT_EQ(parsed({{"text_config", {{"per_layer_config", {{"3", nullptr}}}}}}).text.layers[3].head_dim,
              64);
    EXPECT_SAYS(refusal({{"text_config", {{"per_layer_config", {{"0", {{"sliding_window", 7}}}}}}}},
                        ErrorKind::unsupported),
                "sliding_window");
    EXPECT_EQ(parsed({{"text_config", {{"per_layer_config", {{"0", {{"sliding_window", 129}}}}}}}})
                  .text.layers[0]
                  .head_dim,
              64);
    for (const char* key : {"8", "-1", "x", "", "1x"}) {
        EXPECT_SAYS(refusal({{"text_config", {{"per_layer_config", {{key, {{"head_dim", 8}}}}}}}}),
                    "per_layer_config");
    }
    EXPECT_SAYS(refusal({{"text_config", {{"per_layer_config", {{"1", 3}}}}}}), "per_layer_config.1");
    EXPECT_SAYS(refusal({{"text_config", {{"per_layer_config", {{"1", {{"head_dim", "x"}}}}}}}}),
                "per_layer_config.1.head_dim");
}

TEST(Config, TheLastLayerIsFull) {
    const Config config = parsed({{"text_config",
                                   {{"num_hidden_layers", 2},
                                    {"layer_types", {"sliding_attention", "sliding_attention"}},
                                    {"per_layer_config", nullptr}}}});
    EXPECT_EQ(config.text.layers[0].kind, LayerKind::sliding);
    EXPECT_EQ(config.text.layers[1].kind, LayerKind::full);
    EXPECT_EQ(config.text.layers[1].head_dim, 512);
    EXPECT_EQ(parsed({{"text_config", {{"layer_types", nullptr}}}}).text.layers[5].kind, LayerKind::full);
}

TEST(Config, ReadsTheOlderRopeKeys) {
    const Config config = parsed({{"text_config",
                                   {{"rope_parameters", nullptr},
                                    {"rope_theta", 5e5},
                                    {"rope_local_base_freq", 2e4},
                                    {"partial_rotary_factor", 0.5}}}});
    EXPECT_EQ(config.text.layers[0].rope_theta, 2e4f);
    EXPECT_EQ(config.text.layers[3].rope_theta, 5e5f);
    EXPECT_EQ(config.text.layers[3].rotated_pairs, 32);
    EXPECT_EQ(parsed({{"text_config", {{"rope_parameters", nullptr}}}}).text.layers[3].rotated_pairs, 16);
    const auto rope = [](const char* kind, const json& change) {
        return json{{"text_config", {{"rope_parameters", {{kind, change}}}}}};
    };
    EXPECT_EQ(parsed(rope("full_attention", {{"rope_type", "default"}, {"partial_rotary_factor", nullptr}}))
                  .text.layers[3]
                  .rotated_pairs,
              64);
    EXPECT_SAYS(refusal(rope("full_attention", {{"rope_type", "yarn"}}), ErrorKind::unsupported), "\"yarn\"");
    EXPECT_SAYS(refusal(rope("full_attention", {{"rope_type", "default"}}), ErrorKind::unsupported),
                "partial_rotary_factor");
    EXPECT_SAYS(refusal(rope("full_attention", {{"factor", 8}}), ErrorKind::unsupported), "factor");
    EXPECT_SAYS(refusal(rope("full_attention", {{"partial_rotary_factor", 1.5}})), "partial_rotary_factor");
    EXPECT_SAYS(refusal(rope("sliding_attention", {{"rope_theta", 0}})), "rope_theta");
    EXPECT_SAYS(refusal({{"text_config", {{"rope_parameters", {{"rope_theta", 1e4}}}}}}),
                "sliding_attention");
    EXPECT_SAYS(refusal({{"text_config", {{"rope_scaling", {{"factor", 8}}}}}}, ErrorKind::unsupported),
                "rope_scaling");
}

TEST(Config, AnExplicitNullIsUnset) {
    json config = demo();
    for (const char* key : {"canvas_length", "dtype", "tie_word_embeddings", "quantization_config",
                            "quantization", "architectures"}) {
        config[key] = nullptr;
    }
    for (const char* key : {"final_logit_softcapping", "use_bidirectional_attention", "hidden_activation",
                            "rms_norm_eps", "bos_token_id"}) {
        config["text_config"][key] = nullptr;
    }
    config["vision_config"] = nullptr;
    const auto result = parse_config(config.dump(), "c");
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->canvas_length, 256);
    EXPECT_EQ(result->text.final_softcap, 30.0f);
    EXPECT_FALSE(result->text.bidirectional_images);
    EXPECT_FALSE(result->vision);
}

TEST(Config, KnowsTheReleaseCandidateByBothNames) {
    EXPECT_EQ(parsed({{"model_type", "diffusion_gemma4"},
                      {"architectures", {"DiffusionGemma4ModelForBlockDiffusion"}}})
                  .model_type,
              "diffusion_gemma4");
    json config = demo();
    config.erase("model_type");
    config["architectures"] = {"DiffusionGemma4ModelForBlockDiffusion"};
    EXPECT_EQ(parse_config(config.dump(), "c")->model_type, "diffusion_gemma4");
}

TEST(Config, RefusesOtherArchitecturesByName) {
    const auto llama = refusal({{"model_type", "llama"}}, ErrorKind::unsupported);
    EXPECT_SAYS(llama, "\"llama\"");
    EXPECT_SAYS(llama, "DiffusionGemmaForBlockDiffusion");
    EXPECT_EQ(llama.find("plain Gemma"), std::string::npos) << llama;
    EXPECT_SAYS(refusal({{"model_type", "gemma4"}}, ErrorKind::unsupported), "plain Gemma");
    EXPECT_SAYS(refusal({{"architectures", {"Gemma4ForConditionalGeneration"}}}, ErrorKind::unsupported),
                "plain Gemma");
    EXPECT_SAYS(refusal({{"architectures", {"LlamaForCausalLM"}}}, ErrorKind::unsupported),
                "\"LlamaForCausalLM\"");
    EXPECT_SAYS(refusal({{"architectures", {1}}}, ErrorKind::unsupported), "architectures[0] is 1");
    EXPECT_SAYS(refusal({{"architectures", "x"}}), "a list of class names");
    EXPECT_SAYS(refusal({{"model_type", {1}}}, ErrorKind::unsupported), "a list");
    EXPECT_SAYS(refusal({{"model_type", nullptr}, {"architectures", nullptr}}, ErrorKind::unsupported),
                "neither");
    EXPECT_SAYS(refusal_of("{}", ErrorKind::unsupported), "neither");
    EXPECT_SAYS(refusal({{"vision_config", {{"model_type", "siglip"}}}}, ErrorKind::unsupported),
                "\"siglip\"");
}

TEST(Config, RefusesBrokenText) {
    for (const char* text :
         {"", "{", "[]", "7", "null", "{\"a\":}", "\xff\xfe", "{\"a\":\"\xff\"}", "{} {}"}) {
        EXPECT_FALSE(refusal_of(text).empty());
        EXPECT_NE(refusal_of(text), "accepted") << text;
    }
    EXPECT_SAYS(refusal_of(std::string(100000, '[')), "near byte");
    EXPECT_SAYS(refusal_of(R"({"text_config":{"a":[1],"rms_norm_eps":1e999}})"),
                R"(a number under "rms_norm_eps" that is too large)");
    EXPECT_SAYS(refusal_of("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"),
                "nested deeper");
    EXPECT_SAYS(refusal_of(std::string((std::size_t{16} << 20) + 1, ' ')), "too many");
}

TEST(Config, RefusesNonsenseNumbersByKey) {
    const json bad[] = {0,
                        -1,
                        1.5,
                        "7",
                        true,
                        json::array(),
                        json::object(),
                        9223372036854775807LL,
                        18446744073709551615ULL,
                        1e30};
    for (const char* key :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "sliding_window", "num_experts", "top_k_experts",
          "moe_intermediate_size", "max_position_embeddings", "self_conditioning_size"}) {
        for (const json& value : bad) EXPECT_SAYS(refusal({{"text_config", {{key, value}}}}), key);
    }
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
        EXPECT_SAYS(refusal({{"text_config", {{key, nullptr}}}}), std::string(key) + " is not set");
    }
    for (const json& value : {json(0), json(-1), json(1.5), json(100000), json("x")}) {
        EXPECT_SAYS(refusal({{"canvas_length", value}}), "canvas_length");
    }
    for (const char* key : {"rms_norm_eps", "final_logit_softcapping"}) {
        for (const json& value : {json(0), json(-1), json("x"), json(1e300), json(1e-300)}) {
            EXPECT_SAYS(refusal({{"text_config", {{key, value}}}}), key);
        }
    }
    for (const char* key : {"hidden_size", "num_attention_heads", "head_dim", "patch_size",
                            "pooling_kernel_size", "rms_norm_eps"}) {
        EXPECT_SAYS(refusal({{"vision_config", {{key, -4}}}}), std::string("vision_config.") + key);
    }
    EXPECT_SAYS(refusal({{"vision_config", {{"head_dim", 26}}}}), "divisible by 4");
    EXPECT_SAYS(refusal({{"vision_config", {{"num_key_value_heads", 3}}}}), "divisor");
}

TEST(Config, RefusesWhatDoesNotFitTogether) {
    EXPECT_SAYS(refusal({{"text_config", {{"num_key_value_heads", 3}}}}), "does not divide");
    EXPECT_SAYS(refusal({{"text_config", {{"head_dim", 63}}}}), "must be even");
    EXPECT_SAYS(refusal({{"text_config", {{"top_k_experts", 17}}}}), "from 1 to 16");
    EXPECT_SAYS(refusal({{"text_config", {{"num_hidden_layers", 9}}}}), "9 entries (it has 8)");
    EXPECT_SAYS(refusal({{"text_config", {{"layer_types", "x"}}}}), "layer_types");
    EXPECT_SAYS(refusal({{"text_config", {{"layer_types", {"chunked_attention", 1, 1, 1, 1, 1, 1, 1}}}}},
                        ErrorKind::unsupported),
                "layer_types[0] is \"chunked_attention\"");
    EXPECT_SAYS(refusal({{"text_config", 7}}), "text_config");
    EXPECT_SAYS(refusal({{"vision_config", {{"rope_parameters", 7}}}}), "vision_config.rope_parameters");
}

TEST(Config, IdsLieInTheVocabulary) {
    for (const char* key :
         {"pad_token_id", "bos_token_id", "boi_token_id", "eoi_token_id", "image_token_id", "eos_token_id"}) {
        EXPECT_SAYS(refusal({{key, 2048}}), key);
        EXPECT_SAYS(refusal({{key, -1}}), key);
    }
    EXPECT_EQ(parsed({{"eos_token_id", {1, 106, 50}}}).eos_ids, (std::vector<int>{1, 106, 50}));
    EXPECT_EQ(parsed({{"eos_token_id", 7}}).eos_ids, std::vector<int>{7});
    EXPECT_SAYS(refusal({{"eos_token_id", {1, "x"}}}), "eos_token_id");
    EXPECT_EQ(parsed({{"pad_token_id", 5}}).pad_id, 5);
    // A small text model need not name image ids; one with a tower must.
    EXPECT_TRUE(refusal({{"image_token_id", nullptr}}).find("image_token_id is not set") !=
                std::string::npos);
    EXPECT_EQ(parsed({{"image_token_id", nullptr}, {"vision_config", nullptr}}).image_id, 258880);
}

TEST(Config, RefusesWhatWeCannotRunByName) {
    EXPECT_SAYS(refusal({{"text_config", {{"use_bidirectional_attention", "all"}}}}, ErrorKind::unsupported),
                "\"all\"");
    EXPECT_SAYS(refusal({{"text_config", {{"hidden_activation", "silu"}}}}, ErrorKind::unsupported),
                "\"silu\"");
    EXPECT_SAYS(refusal({{"text_config", {{"attention_bias", true}}}}, ErrorKind::unsupported),
                "attention_bias");
    EXPECT_SAYS(refusal({{"tie_word_embeddings", false}}, ErrorKind::unsupported), "tie_word_embeddings");
    EXPECT_SAYS(refusal({{"dtype", "float64"}}, ErrorKind::unsupported), "\"float64\"");
    EXPECT_SAYS(refusal({{"dtype", 16}}), "dtype");
    EXPECT_EQ(parsed({{"dtype", nullptr}, {"torch_dtype", "torch.float16"}}).dtype, Dtype::f16);
    EXPECT_EQ(parsed({{"dtype", "float32"}}).dtype, Dtype::f32);
}

TEST(Config, RecordsTheQuantisation) {
    EXPECT_EQ(parsed({{"quantization_config", {{"quant_method", "compressed-tensors"}}}}).quantization,
              "compressed-tensors");
    EXPECT_EQ(parsed({{"quantization", {{"bits", 4}}}}).quantization, "mlx");
    EXPECT_EQ(
        parsed({{"text_config", {{"quantization_config", {{"quant_method", "modelopt"}}}}}}).quantization,
        "modelopt");
    EXPECT_SAYS(refusal({{"quantization_config", "int4"}}), "quantization_config");
}

TEST(Config, ReadsEveryGoldenCheckpoint) {
    for (const char* name : {"calm-f32", "text-f32", "text-bf16-sharded", "vision-f32", "training-f32"}) {
        const auto dir = testing::golden_dir(name);
        if (!dir) continue;
        std::ifstream in(*dir / "checkpoint/config.json");
        const auto config = parse_config(std::string(std::istreambuf_iterator<char>(in), {}), name);
        ASSERT_TRUE(config) << config.error().message;
        EXPECT_EQ(config->text.layers.size(), 6u);
        EXPECT_EQ(config->canvas_length, 32);
        EXPECT_EQ(config->image_id, 502);
    }
}

}  // namespace
}  // namespace dgemma::model
