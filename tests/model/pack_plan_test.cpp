#include "model/pack_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "model/synthetic.h"
#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::model {
namespace {

using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

PackFormats formats(std::string_view profile, const std::vector<std::string>& sets = {}) {
    auto out = choose_formats(profile, sets);
    EXPECT_TRUE(out) << out.error().message;
    return std::move(out).value();
}

std::string refusal(std::string_view profile, const std::vector<std::string>& sets) {
    const auto out = choose_formats(profile, sets);
    if (out) return "accepted";
    EXPECT_EQ(out.error().kind, ErrorKind::usage);
    return out.error().message;
}

// The plan of the published model, vision tower included, by name.
std::map<std::string, PlannedTensor> real_plan(const PackFormats& chosen) {
    auto config = parse_config(*preset_config("26b", 0), "preset");
    EXPECT_TRUE(config) << config.error().message;
    config->vision = VisionConfig{};
    config->vision->hidden_size = 1152;
    config->vision->intermediate_size = 4304;
    config->vision->layers = 1;
    config->vision->heads = config->vision->kv_heads = 16;
    config->vision->head_dim = 72;
    config->vision->patch_size = 16;
    config->vision->position_rows = 10240;
    std::map<std::string, PlannedTensor> out;
    for (const ExpectedTensor& expected : expected_tensors(*config)) {
        PlannedTensor planned = plan_tensor(expected, Dtype::bf16, chosen);
        EXPECT_TRUE(files::can_encode(planned.item.form)) << expected.name;
        out.emplace(expected.name, std::move(planned));
    }
    return out;
}

struct Expected {
    const char* name;
    const char* group;
    Encoding encoding;
    Layout layout;
};

TEST(PackPlan, ProfilesSayWhatBecomesOfEveryClass) {
    constexpr Encoding plain = Encoding::plain, a8 = Encoding::affine8, a4 = Encoding::affine4,
                       f8 = Encoding::fp8_row, f4 = Encoding::nvfp4;
    struct Row {
        const char* profile;
        Encoding experts, attn, dense, sc, vision;
    };
    for (const Row& row : {Row{"bf16", plain, plain, plain, plain, plain}, Row{"q8", a8, a8, a8, a8, plain},
                           Row{"q4", a4, a8, a8, a8, plain}, Row{"fp8", f8, f8, f8, plain, plain},
                           Row{"nvfp4", f4, f8, f8, plain, plain}}) {
        const auto plan = real_plan(formats(row.profile));
        const auto check = [&](const std::string& name, const char* group, Encoding encoding) {
            const auto found = plan.find(name);
            ASSERT_NE(found, plan.end()) << name;
            const files::PackItem& item = found->second.item;
            EXPECT_EQ(item.group, group) << name;
            EXPECT_EQ(item.form.encoding, encoding) << row.profile << " " << name;
            const bool rows = encoding == f8 || encoding == f4;
            EXPECT_EQ(item.form.layout, rows ? Layout::rows : Layout::tiles) << row.profile << " " << name;
            EXPECT_EQ(item.kept, "") << name;
        };
        const std::string layer = "model.decoder.layers.5.";
        check(layer + "experts.gate_up_proj", "experts", row.experts);
        check(layer + "experts.down_proj", "experts", row.experts);
        for (const char* name : {"q_proj", "k_proj", "o_proj"})
            check(layer + "self_attn." + name + ".weight", "attn", row.attn);
        for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
            check(layer + "mlp." + name + ".weight", "dense", row.dense);
            check(std::string("model.decoder.self_conditioning.") + name + ".weight", "sc", row.sc);
        }
        check("model.encoder.embed_vision.embedding_projection.weight", "vision", row.vision);
        // Locked, in rows, as stored.
        for (const std::string& name :
             {std::string("model.decoder.embed_tokens.weight"), layer + "router.proj.weight",
              layer + "router.scale", layer + "input_layernorm.weight", layer + "layer_scalar",
              std::string("model.decoder.self_conditioning.pre_norm.weight"),
              std::string("model.encoder.vision_tower.patch_embedder.position_embedding_table")}) {
            const files::PackItem& item = plan.at(name).item;
            EXPECT_EQ(item.form.encoding, Encoding::plain) << name;
            EXPECT_EQ(item.form.layout, Layout::rows) << name;
        }
    }
}

TEST(PackPlan, AClassCanBeSet) {
    const PackFormats chosen = formats("q4", {"attn=bf16", "vision=q8", "sc=fp8", "sc=nvfp4"});
    EXPECT_TRUE(chosen.changed);
    EXPECT_FALSE(formats("q4").changed);
    const auto words = format_words(chosen);
    EXPECT_EQ(words.at("attn"), "bf16");
    EXPECT_EQ(words.at("experts"), "q4");
    EXPECT_EQ(words.at("sc"), "nvfp4");  // the last one counts
    EXPECT_EQ(words.at("embedding"), "as stored");
    const auto plan = real_plan(chosen);
    const std::string tower = "model.encoder.vision_tower.encoder.layers.0.";
    EXPECT_EQ(plan.at(tower + "self_attn.q_proj.linear.weight").item.form.encoding, Encoding::affine8);
    // 4304 is no multiple of 32: by rule it stays, and says so.
    const files::PackItem& down = plan.at(tower + "mlp.down_proj.linear.weight").item;
    EXPECT_EQ(down.form.encoding, Encoding::plain);
    EXPECT_EQ(down.form.layout, Layout::tiles);
    EXPECT_EQ(down.kept, "its width 4304 is no multiple of 32");
    EXPECT_EQ(plan.at(tower + "mlp.up_proj.linear.weight").item.kept, "");
    EXPECT_EQ(real_plan(formats("q4", {"vision=nvfp4"})).at(tower + "mlp.down_proj.linear.weight").item.kept,
              "");
}

TEST(PackPlan, WhatCannotBeSetIsExplained) {
    EXPECT_SAYS(refusal("q4", {"embedding=q8"}), "also the head");
    EXPECT_SAYS(refusal("q4", {"attn=bf16", "router=q4"}), "other experts");
    EXPECT_SAYS(refusal("q4", {"norms=bf16"}), "vectors");
    EXPECT_SAYS(refusal("q4", {"scalars=bf16"}), "single numbers");
    EXPECT_SAYS(refusal("q4", {"attention=q8"}), "experts, attn, dense, sc, vision");
    EXPECT_SAYS(refusal("q4", {"attn=q5"}), "bf16, q8, q4, fp8, nvfp4");
    EXPECT_SAYS(refusal("q4", {"attn="}), "bf16, q8, q4, fp8, nvfp4");
    EXPECT_SAYS(refusal("q4", {"attn"}), "class=format");
    EXPECT_SAYS(refusal("q4", {"=q8"}), "no class");
    EXPECT_SAYS(refusal("q5", {}), "no profile \"q5\"");
}

TEST(PackPlan, ExpertsAgree) {
    auto config = parse_config(*preset_config("tiny", 1), "preset");
    ASSERT_TRUE(config);
    config->text.expert_size = 48;  // down's width; gate_up's is the hidden size
    for (const PlannedTensor& planned : plan_synthetic_pack(*config, formats("q4"))) {
        if (planned.group != TensorClass::experts) continue;
        EXPECT_EQ(planned.item.form.encoding, Encoding::plain) << planned.item.name;
        EXPECT_NE(planned.item.kept, "") << planned.item.name;
    }
    config->text.expert_size = 33;  // not even pairs: rows
    for (const PlannedTensor& planned : plan_synthetic_pack(*config, formats("bf16"))) {
        if (planned.item.form.shape.back() != 33) continue;
        EXPECT_EQ(planned.item.form.layout, Layout::rows);
    }
}

TEST(PackPlan, TakesEveryTensorOfAModelUnderItsOwnName) {
    const auto checkpoint = files::Checkpoint::open(testing::demo_dir());
    ASSERT_TRUE(checkpoint);
    const auto config = parse_config(*checkpoint->config_text(), "config.json");
    ASSERT_TRUE(config);
    const auto plan = plan_pack(*config, *checkpoint, formats("q4"));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->size(), checkpoint->names().size());
    for (const PlannedTensor& planned : *plan)
        EXPECT_TRUE(checkpoint->weight(planned.source)) << planned.source;
}

TEST(PackPlan, AQuantisedPackIsNoSource) {
    const ScratchDir scratch;
    auto config = parse_config(*preset_config("tiny", 1), "preset");
    ASSERT_TRUE(config);
    ThreadPool pool(1);
    for (const char* profile : {"bf16", "q8"}) {
        const auto plan = plan_synthetic_pack(*config, formats(profile));
        auto writer = files::PackWriter::create(scratch.path() / profile, false, 0);
        ASSERT_TRUE(writer);
        for (const PlannedTensor& planned : plan) {
            const auto rows = synthetic_rows(planned, *config, LogitShape::flat, 1);
            ASSERT_TRUE((*writer)->add(planned.item, *rows, pool, {}));
        }
        ASSERT_TRUE((*writer)->commit({}));
        const auto checkpoint = files::Checkpoint::open(scratch.path() / profile);
        ASSERT_TRUE(checkpoint) << checkpoint.error().message;
        // Both hold what the model needs, and only the plain one can be made into another.
        EXPECT_TRUE(check_tensors(*config, *checkpoint));
        const auto again = plan_pack(*config, *checkpoint, formats("q4"));
        EXPECT_EQ(again.ok(), std::string(profile) == "bf16");
        const std::string said = again ? "quantised already" : again.error().message;
        EXPECT_SAYS(said, "quantised already");
    }
}

}  // namespace
}  // namespace dgemma::model
