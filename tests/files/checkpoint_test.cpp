#include "files/checkpoint.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::files {
namespace {

namespace fs = std::filesystem;
using testing::safetensors_of;
using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

std::string refusal(const fs::path& path, ErrorKind kind) {
    const auto result = Checkpoint::open(path);
    if (result) return "accepted";
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    return result.error().message;
}

std::string one(const std::string& name) { return safetensors_of({{name, {"F32", {1}}}}); }

TEST(Checkpoint, OpensShardsByIndex) {
    const auto checkpoint = Checkpoint::open(testing::demo_dir());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->files().size(), 2u);
    EXPECT_EQ(checkpoint->tensors().size(), 232u);
    EXPECT_EQ(checkpoint->names().size(), 232u);
    EXPECT_TRUE(checkpoint->ignored_files().empty());
    const Tensor* embedding = checkpoint->find("model.decoder.embed_tokens.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->shape, (Shape{2048, 256}));
    EXPECT_TRUE(checkpoint->config_text());
    EXPECT_TRUE(check_plain_storage(*checkpoint));
}

TEST(Checkpoint, OpensAFileAShardAndAnIndexByPath) {
    const fs::path text = *testing::golden_dir("text-f32") / "checkpoint";
    const auto file = Checkpoint::open(text / "model.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->path(), text);
    EXPECT_TRUE(file->has_file("config.json"));
    for (const char* name : {"model-00002-of-00002.safetensors", "model.safetensors.index.json"}) {
        const auto set = Checkpoint::open(testing::demo_dir() / name);
        ASSERT_TRUE(set) << set.error().message;
        EXPECT_EQ(set->tensors().size(), 232u);
    }
    const auto alone = Checkpoint::open(*testing::golden_dir("text-f32") / "tensors.safetensors");
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_EQ(alone->config_text().error().kind, ErrorKind::not_found);
}

TEST(Checkpoint, ReadsTextBesideTheWeightsAndNothingElse) {
    const auto checkpoint = Checkpoint::open(testing::demo_dir());
    ASSERT_TRUE(checkpoint);
    EXPECT_SAYS(checkpoint->read_text("chat_template.jinja").error().message,
                "hf download ORG/NAME chat_template.jinja");
    EXPECT_FALSE(checkpoint->has_file("../demo/config.json"));
    EXPECT_FALSE(checkpoint->read_text("../demo/config.json"));
    EXPECT_FALSE(checkpoint->has_file("."));
}

TEST(Checkpoint, ANamedShardThatIsNotThereSaysHowToGetIt) {
    const ScratchDir scratch;
    scratch.copy_from(testing::demo_dir());
    fs::remove(scratch.path() / "model-00002-of-00002.safetensors");
    EXPECT_SAYS(
        refusal(scratch.path(), ErrorKind::not_found),
        "hf download ORG/NAME model-00002-of-00002.safetensors --local-dir " + scratch.path().string());
    // A link to a blob that was never fetched, as an interrupted download leaves it.
    fs::create_symlink("../blobs/none", scratch.path() / "model-00002-of-00002.safetensors");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::not_found), "hf download");
    scratch.write("config.json", R"({"_name_or_path":"some/where"})");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::not_found),
                "hf download some/where model-00002-of-00002.safetensors");
    // Without the index the set's own numbers tell what is missing.
    fs::remove(scratch.path() / "model.safetensors.index.json");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::not_found), "model-00002-of-00002.safetensors");
}

// A file that is there and cannot be read is broken; taken for absent, it would quietly change what runs.
TEST(Checkpoint, WhatIsThereAndNoFileIsAnErrorThatNamesIt) {
    for (const std::string name : {"model.safetensors.index.json", "generation_config.json", "config.json",
                                   "model-00001-of-00002.safetensors", "dgemma-pack.json"}) {
        for (const std::string kind : {"link", "fifo", "directory"}) {
            const ScratchDir scratch;
            scratch.copy_from(testing::demo_dir());
            const fs::path path = scratch.path() / name;
            fs::remove(path);
            if (kind == "link") {
                fs::create_symlink("nowhere", path);
            } else if (kind == "fifo") {
                ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
            } else {
                fs::create_directory(path);
            }
            const auto opened = Checkpoint::open(scratch.path());
            if (name == "generation_config.json" || name == "config.json") {
                ASSERT_TRUE(opened) << opened.error().message;
                EXPECT_TRUE(opened->has_file(name)) << kind;
                const auto text = opened->read_text(name);
                ASSERT_FALSE(text) << name << " " << kind;
                EXPECT_SAYS(text.error().message, name);
            } else {
                ASSERT_FALSE(opened) << name << " " << kind;
                EXPECT_SAYS(opened.error().message, name);
            }
        }
    }
}

TEST(Checkpoint, ALinkToNothingInPlaceOfTheOnlyWeightsSaysHowToGetThem) {
    const ScratchDir scratch;
    fs::create_symlink("nowhere", scratch.path() / "model.safetensors");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::not_found), "hf download ORG/NAME model.safetensors");
}

TEST(Checkpoint, InAHubCacheTheCommandNamesTheRepository) {
    const ScratchDir scratch;
    const fs::path snapshot = "hub/models--org--name/snapshots/0123abcd";
    scratch.write(
        snapshot / "model.safetensors.index.json",
        R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
    scratch.write(snapshot / "model-00001-of-00002.safetensors", one("a"));
    EXPECT_SAYS(refusal(scratch.path() / snapshot, ErrorKind::not_found),
                "hf download org/name model-00002-of-00002.safetensors --revision 0123abcd");
    scratch.write("hub/models--org--name/refs/main", "0123abcd\n");
    const auto message = refusal(scratch.path() / snapshot, ErrorKind::not_found);
    EXPECT_SAYS(message, "hf download org/name model-00002-of-00002.safetensors");
    EXPECT_EQ(message.find("--revision"), std::string::npos) << message;
}

TEST(Checkpoint, WithoutAnIndexTheWholeSetCounts) {
    const ScratchDir scratch;
    scratch.copy_from(testing::demo_dir());
    fs::remove(scratch.path() / "model.safetensors.index.json");
    const auto checkpoint = Checkpoint::open(scratch.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors().size(), 232u);
}

TEST(Checkpoint, FilesOutsideTheIndexAreLeftAlone) {
    const ScratchDir scratch;
    scratch.copy_from(testing::demo_dir());
    scratch.write("model-00003-of-00003.safetensors", "not even a header");
    scratch.write("adapter_model.safetensors", one("model.decoder.embed_tokens.weight"));
    scratch.write("notes.txt", "x");
    const auto checkpoint = Checkpoint::open(scratch.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors().size(), 232u);
    EXPECT_EQ(checkpoint->ignored_files(),
              (std::vector<std::string>{"adapter_model.safetensors", "model-00003-of-00003.safetensors"}));
}

TEST(Checkpoint, AStaleIndexIsRefused) {
    const ScratchDir scratch;
    scratch.write("model-00001-of-00002.safetensors", one("a"));
    scratch.write("model-00002-of-00002.safetensors", one("b"));
    const auto index = [&](const char* a, const char* b) {
        scratch.write("model.safetensors.index.json", std::string(R"({"weight_map":{")") + a +
                                                          R"(":"model-00001-of-00002.safetensors",")" + b +
                                                          R"(":"model-00002-of-00002.safetensors"}})");
    };
    index("a", "b");
    EXPECT_TRUE(Checkpoint::open(scratch.path()));
    index("b", "a");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::invalid),
                "tensor \"a\" is in \"model-00002-of-00002.safetensors\", and it is not");
    index("a", "c");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::invalid), "\"c\"");
}

TEST(Checkpoint, AnIndexOfFilesThatWereMergedIsPassedOver) {
    const ScratchDir scratch;
    scratch.write("model.safetensors", one("a"));
    scratch.write("model.safetensors.index.json",
                  R"({"weight_map":{"a":"model-00001-of-00002.safetensors"}})");
    EXPECT_TRUE(Checkpoint::open(scratch.path()));
}

TEST(Checkpoint, TwoSetsWithoutAnIndexAreRefusedUnlessOneIsWhole) {
    const ScratchDir scratch;
    scratch.write("model-00001-of-00002.safetensors", one("a"));
    scratch.write("model-00001-of-00003.safetensors", one("a"));
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::invalid), "several sets");
    scratch.write("model-00002-of-00002.safetensors", one("b"));
    const auto checkpoint = Checkpoint::open(scratch.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(checkpoint->ignored_files(), std::vector<std::string>{"model-00001-of-00003.safetensors"});
}

TEST(Checkpoint, ATensorInTwoShardsIsRefused) {
    const ScratchDir scratch;
    scratch.write("model-00001-of-00002.safetensors", one("a"));
    scratch.write("model-00002-of-00002.safetensors", one("a"));
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::invalid),
                "in both \"model-00001-of-00002.safetensors\" and \"model-00002-of-00002.safetensors\"");
}

TEST(Checkpoint, AnIndexMayNotLeadAway) {
    const ScratchDir scratch;
    scratch.write("outside.safetensors", one("a"));
    for (const char* file : {"../outside.safetensors", "/etc/passwd", "..", "", "sub/model.safetensors",
                             "a\\u0000.safetensors"}) {
        scratch.write("model/model.safetensors.index.json",
                      std::string(R"({"weight_map":{"a":")") + file + "\"}}");
        EXPECT_SAYS(refusal(scratch.path() / "model", ErrorKind::invalid), "no file of the same directory");
    }
    scratch.write("model/model.safetensors.index.json", R"({"weight_map":{"a":"pytorch_model.bin"}})");
    EXPECT_SAYS(refusal(scratch.path() / "model", ErrorKind::invalid), "no .safetensors file");
}

TEST(Checkpoint, BrokenIndexesAreRefused) {
    const ScratchDir scratch;
    const auto with = [&](std::string_view json) {
        scratch.write("model.safetensors.index.json", json);
        return refusal(scratch.path(), ErrorKind::invalid);
    };
    EXPECT_SAYS(with("{"), "no JSON");
    EXPECT_SAYS(with("[]"), "no JSON object");
    EXPECT_SAYS(with("{}"), "no weight_map");
    EXPECT_SAYS(with(R"({"weight_map":[]})"), "no object");
    EXPECT_SAYS(with(R"({"weight_map":{}})"), "empty");
    EXPECT_SAYS(with(R"({"weight_map":{"a":1}})"), "no file name");
    EXPECT_SAYS(with(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})"), "twice");
    EXPECT_SAYS(with(R"({"weight_map":{},"weight_map":{}})"), "twice");
    scratch.write("model.safetensors.index.json", "");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::io), "empty");
}

TEST(Checkpoint, ATruncatedShardIsNamed) {
    const ScratchDir scratch;
    scratch.copy_from(testing::demo_dir());
    fs::resize_file(scratch.path() / "model-00002-of-00002.safetensors", 5'000'000);
    const auto message = refusal(scratch.path(), ErrorKind::invalid);
    EXPECT_SAYS(message, "model-00002-of-00002.safetensors");
    EXPECT_SAYS(message, "cut short");
}

TEST(Checkpoint, OtherFormatsAreRefusedByName) {
    const ScratchDir scratch;
    EXPECT_SAYS(refusal(scratch.path() / "absent", ErrorKind::not_found), "no model at");
    EXPECT_SAYS(refusal(scratch.path(), ErrorKind::not_found), "hf download");
    scratch.write("gguf/a.gguf", "GGUF....");
    EXPECT_SAYS(refusal(scratch.path() / "gguf", ErrorKind::unsupported), "GGUF");
    EXPECT_SAYS(refusal(scratch.path() / "gguf/a.gguf", ErrorKind::unsupported), "GGUF");
    scratch.write("gguf/renamed", "GGUF....");
    EXPECT_SAYS(refusal(scratch.path() / "gguf/renamed", ErrorKind::unsupported), "GGUF");
    scratch.write("bin/pytorch_model.bin", "x");
    EXPECT_SAYS(refusal(scratch.path() / "bin", ErrorKind::unsupported), "PyTorch");
    scratch.write("dgq/model.dgq.json", "{}");
    EXPECT_SAYS(refusal(scratch.path() / "dgq", ErrorKind::unsupported), ".dgq");
    scratch.write("odd/weights.safetensors", one("a"));
    EXPECT_SAYS(refusal(scratch.path() / "odd", ErrorKind::not_found), "weights.safetensors");
    scratch.write("odd/readme", "x");
    EXPECT_SAYS(refusal(scratch.path() / "odd/readme", ErrorKind::invalid), "no model");
}

TEST(Checkpoint, QuantisedWeightsAreRefusedByName) {
    const auto with = [](std::string_view config, const std::map<std::string, testing::TensorSpec>& tensors) {
        const ScratchDir scratch;
        scratch.write("config.json", config);
        scratch.write("model.safetensors", safetensors_of(tensors));
        const auto checkpoint = Checkpoint::open(scratch.path());
        EXPECT_TRUE(checkpoint);
        const auto status = check_plain_storage(*checkpoint);
        if (status) return std::string("plain");
        EXPECT_EQ(status.error().kind, ErrorKind::unsupported);
        return status.error().message;
    };
    const std::map<std::string, testing::TensorSpec> plain{{"a.weight", {"BF16", {2}}}};
    EXPECT_EQ(with("{}", plain), "plain");
    EXPECT_EQ(with(R"({"quantization_config":null,"quantization":{}})", plain), "plain");
    EXPECT_EQ(with("not json", plain), "plain");
    EXPECT_SAYS(with(R"({"quantization":{"group_size":64,"bits":4}})", plain), "MLX \"affine\", 4 bits");
    EXPECT_SAYS(with(R"({"quantization":{"group_size":32,"bits":8,"mode":"mxfp8"}})", plain),
                "MLX \"mxfp8\", 8 bits");
    EXPECT_SAYS(
        with(R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized"}})",
             plain),
        "\"compressed-tensors\" \"pack-quantized\"");
    EXPECT_SAYS(with(R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}})", plain),
                "\"modelopt\" \"NVFP4\"");
    EXPECT_SAYS(with(R"({"quantization_config":{"quant_method":"bitsandbytes"}})", plain),
                "\"bitsandbytes\"");
    EXPECT_SAYS(with(R"({"quantization_config":{"quant_method":"never-heard-of"}})", plain),
                "\"never-heard-of\"");
    EXPECT_SAYS(with(R"({"quantization_config":{"x":1}})", plain), "unnamed");
    EXPECT_SAYS(with(R"({"text_config":{"quantization_config":{"quant_method":"fp8"}}})", plain), "\"fp8\"");
    // Without a word in config.json the tensors tell.
    EXPECT_SAYS(with("{}", {{"a.scales", {"BF16", {1}}}, {"a.weight", {"U32", {1}}}}), "MLX");
    EXPECT_SAYS(with("{}", {{"a.weight_packed", {"U8", {1}}}}), "compressed-tensors");
    EXPECT_SAYS(with("{}", {{"a.weight_scale_2", {"F32", {1}}}}), "ModelOpt");
    EXPECT_SAYS(with("{}", {{"a.weight.absmax", {"F32", {1}}}}), "bitsandbytes");
    EXPECT_SAYS(with("{}", {{"a.qweight", {"I32", {1}}}}), "GPTQ");
}

TEST(Checkpoint, TensorsSurviveAMove) {
    auto first = Checkpoint::open(*testing::golden_dir("calm-f32") / "checkpoint");
    ASSERT_TRUE(first);
    const std::vector<float> before = to_f32(*first->find("model.decoder.norm.weight"));
    const Checkpoint second = std::move(first).value();
    EXPECT_EQ(to_f32(*second.find("model.decoder.norm.weight")), before);
}

}  // namespace
}  // namespace dgemma::files
