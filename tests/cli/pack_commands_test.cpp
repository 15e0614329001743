// quantize and synth as they are typed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/info.h"
#include "cli/verbs.h"
#include "files/checkpoint.h"
#include "files/quantizers.h"
#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::cli {
namespace {

namespace fs = std::filesystem;
using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

struct Outcome {
    int code = 0;
    std::string out, err;
};

Outcome typed(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) {
    std::istringstream in;
    std::ostringstream out, err;
    Console console{.in = in, .out = out, .err = err};
    Outcome outcome;
    outcome.code = run(words, environment, console);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
}

std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<float> decode(const WeightView& view) {
    std::vector<float> out(static_cast<std::size_t>(view.elements()));
    files::decode_rows(view, 0, view.elements() / view.shape.back(), out.data(), view.shape.back());
    return out;
}

class PackCommands : public ::testing::Test {
  protected:
    ScratchDir scratch;
    std::string demo = testing::demo_dir().string();
    std::string target = (scratch.path() / "pack").string();
};

// What each format may lose of weights that are about normal (tests/files/quantizers_test.cpp), root mean
// square over root mean square.
TEST_F(PackCommands, TheDemoLosesWhatItsFormatsAllow) {
    const auto source = files::Checkpoint::open(testing::demo_dir());
    ASSERT_TRUE(source);
    const std::map<Encoding, double> allowed{{Encoding::plain, 0},
                                             {Encoding::affine8, 0.006},
                                             {Encoding::affine4, 0.075},
                                             {Encoding::fp8_row, 0.028},
                                             {Encoding::nvfp4, 0.085}};
    struct Case {
        const char* profile;
        Encoding experts, attn;
    };
    for (const Case& c :
         {Case{"bf16", Encoding::plain, Encoding::plain}, Case{"q8", Encoding::affine8, Encoding::affine8},
          Case{"q4", Encoding::affine4, Encoding::affine8}, Case{"fp8", Encoding::fp8_row, Encoding::fp8_row},
          Case{"nvfp4", Encoding::nvfp4, Encoding::fp8_row}}) {
        const std::string profile = c.profile;
        const Outcome made = typed({"quantize", "-m", demo, "--profile", profile, "-o", target, "--force"});
        ASSERT_EQ(made.code, 0) << made.err;
        EXPECT_SAYS(made.out, "experts");
        EXPECT_SAYS(made.err, "quantizing: ");
        const auto pack = files::Checkpoint::open(target);
        ASSERT_TRUE(pack) << pack.error().message;
        EXPECT_EQ(pack->names(), source->names());
        EXPECT_EQ(pack->weight("model.decoder.layers.0.experts.gate_up_proj")->encoding, c.experts);
        EXPECT_EQ(pack->weight("model.decoder.layers.0.self_attn.q_proj.weight")->encoding, c.attn);
        for (const std::string& name : pack->names()) {
            const WeightView stored = *pack->weight(name);
            const auto x = decode(*source->weight(name)), y = decode(stored);
            ASSERT_EQ(x.size(), y.size()) << name;
            double error = 0, all = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                error += std::pow(double{x[i]} - double{y[i]}, 2);
                all += std::pow(double{x[i]}, 2);
            }
            ASSERT_LE(std::sqrt(error / std::max(all, 1e-30)), allowed.at(stored.encoding))
                << profile << " " << name;
        }
        for (const char* file : {"config.json", "generation_config.json", "tokenizer.json",
                                 "tokenizer_config.json", "processor_config.json"}) {
            EXPECT_TRUE(read_file(fs::path(target) / file) == read_file(testing::demo_dir() / file)) << file;
        }
        const Outcome checked = typed({"quantize", "--check", target, "-m", demo});
        EXPECT_EQ(checked.code, 0) << checked.err;
        EXPECT_SAYS(checked.out, "relative error");
    }
}

TEST_F(PackCommands, APackAnswers) {
    for (const char* profile : {"q8", "q4"}) {
        ASSERT_EQ(typed({"quantize", "-m", demo, "--profile", profile, "-o", target, "--force"}).code, 0);
        const Outcome answer = typed({"ask", "-m", target, "What is the capital of France?"});
        EXPECT_EQ(answer.code, 0) << answer.err;
        EXPECT_EQ(answer.out, "The capital of France is Paris.\n") << profile;
    }
}

TEST_F(PackCommands, InfoListsAPackByClassAndEncoding) {
    const Outcome made =
        typed({"quantize", "-m", demo, "--profile", "q4", "--set", "attn=bf16", "-o", target});
    ASSERT_EQ(made.code, 0) << made.err;
    const auto report = inspect(target);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->problem);
    EXPECT_EQ(report->parameters, 12'213'600);
    std::map<std::string, std::string> formats;
    std::int64_t bytes = 0;
    for (const TensorSum& sum : report->tensors) {
        formats[sum.group] += sum.format + " ";
        bytes += sum.bytes;
    }
    EXPECT_EQ(formats["experts"], "affine4 ");
    EXPECT_EQ(formats["attention"], "bf16 ");
    EXPECT_EQ(formats["dense"], "affine8 ");
    EXPECT_EQ(formats["embedding"], "bf16 ");
    EXPECT_EQ(bytes, report->weight_bytes);
    EXPECT_LE(bytes, static_cast<std::int64_t>(fs::file_size(fs::path(target) / "weights.bin")));
    std::ostringstream text;
    print_text(*report, text);
    EXPECT_SAYS(text.str(), "q4 changed by --set of demo, by dgemma ");
}

TEST_F(PackCommands, WhatCannotBeIsSaidBeforeAnythingIsWritten) {
    const auto refused = [&](const std::vector<std::string>& words, int code) {
        std::vector<std::string> all{"quantize", "-m", demo};
        all.insert(all.end(), words.begin(), words.end());
        const Outcome outcome = typed(all);
        EXPECT_EQ(outcome.code, code) << outcome.err;
        EXPECT_TRUE(fs::is_empty(scratch.path()));
        return outcome.err;
    };
    EXPECT_SAYS(refused({}, 2), "--output");
    EXPECT_SAYS(refused({"-o", target, "--profile", "q5"}, 2), "q4");
    EXPECT_SAYS(refused({"-o", target, "--set", "embedding=q8"}, 2), "also the head");
    EXPECT_SAYS(refused({"-o", target, "--set", "attn=q8", "--set", "experts=q2"}, 2), "formats are");
    EXPECT_SAYS(refused({"-o", target, "--set", "vision"}, 2), "class=format");
    EXPECT_SAYS(refused({"-o", (scratch.path() / "no/pack").string()}, 1), "no directory");
    EXPECT_SAYS(refused({"-o", target, "extra"}, 2), "extra");
    EXPECT_SAYS(refused({"--check", target}, 1), "not there");
    EXPECT_SAYS(refused({"--check", target, "-o", target}, 2), "--output means nothing");
}

TEST_F(PackCommands, AnExistingPackIsKeptUnlessForced) {
    ASSERT_EQ(typed({"quantize", "-m", demo, "-o", target}).code, 0);
    const std::string before = read_file(fs::path(target) / "dgemma-pack.json");
    const Outcome refused = typed({"quantize", "-m", demo, "--profile", "q8", "-o", target});
    EXPECT_EQ(refused.code, 2);
    EXPECT_SAYS(refused.err, "--force");
    EXPECT_TRUE(read_file(fs::path(target) / "dgemma-pack.json") == before);
    EXPECT_EQ(typed({"quantize", "-m", demo, "--profile", "q8", "-o", target, "--force"}).code, 0);
    EXPECT_TRUE(read_file(fs::path(target) / "dgemma-pack.json") != before);
    // Quantised once is enough.
    const Outcome twice = typed({"quantize", "-m", target, "-o", (scratch.path() / "again").string()});
    EXPECT_EQ(twice.code, 1);
    EXPECT_SAYS(twice.err, "quantised already");
}

TEST_F(PackCommands, CheckFindsDamageAndStrangers) {
    ASSERT_EQ(typed({"quantize", "-m", demo, "-o", target}).code, 0);
    const Outcome sound = typed({"quantize", "--check", target}, {"DGEMMA_MODEL=/no/such/model"});
    EXPECT_EQ(sound.code, 0) << sound.err;
    EXPECT_SAYS(sound.out, "affine4");

    // Another model of the same shapes.
    const std::string bf16 = (scratch.path() / "bf16").string(), other = (scratch.path() / "other").string();
    ASSERT_EQ(typed({"synth", "--preset", "tiny", "--layers", "1", "-o", bf16, "--seed", "1"}).code, 0);
    ASSERT_EQ(typed({"quantize", "-m", bf16, "--profile", "q8", "-o", other}).code, 0);
    EXPECT_EQ(typed({"quantize", "--check", other, "-m", bf16}).code, 0);
    ASSERT_EQ(
        typed({"synth", "--preset", "tiny", "--layers", "1", "-o", bf16, "--seed", "2", "--force"}).code, 0);
    const Outcome stranger = typed({"quantize", "--check", other, "-m", bf16});
    EXPECT_EQ(stranger.code, 1);
    EXPECT_SAYS(stranger.err, "it was made of another one");
    EXPECT_EQ(typed({"quantize", "--check", other, "-m", demo}).code, 1);

    std::fstream blob(fs::path(target) / "weights.bin", std::ios::in | std::ios::out | std::ios::binary);
    blob.seekp(0).put('\x55').flush();
    const Outcome damaged = typed({"quantize", "--check", target});
    EXPECT_EQ(damaged.code, 1);
    EXPECT_SAYS(damaged.err, "\"model.decoder.embed_tokens.weight\"");
    fs::resize_file(fs::path(target) / "weights.bin", 100);
    EXPECT_SAYS(typed({"quantize", "--check", target}).err, "cut short");
    EXPECT_SAYS(typed({"ask", "-m", target, "Hi"}).err, "cut short");
}

TEST_F(PackCommands, CheckMissesNoTensor) {
    ASSERT_EQ(typed({"synth", "--preset", "tiny", "--layers", "1", "-o", target}).code, 0);
    const fs::path file = fs::path(target) / "dgemma-pack.json";
    EXPECT_EQ(typed({"quantize", "--check", file.string()}).code, 0);  // the manifest names its pack
    auto manifest = files::parse_manifest(read_file(file), "it").value();
    const std::string lost = "model.decoder.layers.0.experts.down_proj";
    ASSERT_EQ(std::erase_if(manifest.tensors, [&](const auto& tensor) { return tensor.name == lost; }), 1u);
    std::ofstream(file) << files::write_manifest(manifest);
    const Outcome checked = typed({"quantize", "--check", target});
    EXPECT_EQ(checked.code, 1);
    EXPECT_SAYS(checked.err, lost);
    EXPECT_EQ(checked.out, "");
}

TEST_F(PackCommands, RandomWeightsHaveNothingToAnswer) {
    ASSERT_EQ(typed({"synth", "--preset", "tiny", "--layers", "1", "-o", target}).code, 0);
    for (const auto& words : {std::vector<std::string>{"ask", "-m", target, "Hi"}, {"serve", "-m", target}}) {
        const Outcome outcome = typed(words);
        EXPECT_EQ(outcome.code, 1);
        EXPECT_SAYS(outcome.err, "random weights and no tokenizer");
    }
}

TEST_F(PackCommands, CheckSaysWhatIsNoPack) {
    EXPECT_SAYS(typed({"quantize", "--check", demo}).err, "is no pack: it holds no dgemma-pack.json");
    EXPECT_SAYS(typed({"quantize", "--check", demo + "/config.json"}).err, "is no pack");
    EXPECT_SAYS(typed({"quantize", "--check", target}).err, "is not there");
}

TEST_F(PackCommands, SynthWritesEveryFormatAndTheSeedDecides) {
    for (const char* format : {"bf16", "q8", "q4", "fp8", "nvfp4"}) {
        const Outcome made = typed(
            {"synth", "--preset", "tiny", "--format", format, "--layers", "2", "-o", target, "--force"});
        ASSERT_EQ(made.code, 0) << made.err;
        const auto report = inspect(target);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_FALSE(report->problem) << report->problem->message;
        EXPECT_EQ(report->config.text.layers.size(), 2u);
    }
    std::map<std::string, std::string> manifests;
    for (const char* words : {"1 flat 2", "1 flat 1", "2 flat 2", "1 peaked 2"}) {
        std::istringstream in(words);
        std::string seed, logits, threads;
        in >> seed >> logits >> threads;
        ASSERT_EQ(typed({"synth", "--preset", "tiny", "--layers", "1", "--seed", seed, "--logits", logits,
                         "-j", threads, "-o", target, "--force"})
                      .code,
                  0);
        manifests[words] = read_file(fs::path(target) / "dgemma-pack.json");
    }
    EXPECT_TRUE(manifests["1 flat 2"] == manifests["1 flat 1"]) << "threads change nothing";
    EXPECT_TRUE(manifests["1 flat 2"] != manifests["2 flat 2"]);
    EXPECT_TRUE(manifests["1 flat 2"] != manifests["1 peaked 2"]);
    EXPECT_FALSE(fs::exists(fs::path(target) / "tokenizer.json"));

    const std::string tokenizer = (testing::demo_dir() / "tokenizer.json").string();
    ASSERT_EQ(typed({"synth", "--preset", "demo", "--layers", "1", "--tokenizer", tokenizer, "-o", target,
                     "--force"})
                  .code,
              0);
    EXPECT_TRUE(read_file(fs::path(target) / "tokenizer.json") == read_file(tokenizer));
    scratch.write("broken.json", "{");
    EXPECT_NE(typed({"synth", "--preset", "tiny", "--tokenizer", (scratch.path() / "broken.json").string(),
                     "-o", target, "--force"})
                  .code,
              0);
    EXPECT_EQ(typed({"synth", "--preset", "27b", "-o", target}).code, 2);
    EXPECT_EQ(typed({"synth", "--preset", "tiny"}).code, 2);
}

TEST_F(PackCommands, InterruptedItLeavesNothing) {
    const pid_t child = ::fork();
    if (child == 0) {
        const Outcome outcome = typed({"synth", "--preset", "26b", "--layers", "1", "-o", target});
        ::_exit(outcome.err.find("stopped; nothing was written") == std::string::npos ? 1 : outcome.code);
    }
    // Once the first bytes are there it is in the middle of its work.
    const auto begun = [&] {
        for (const auto& entry : fs::recursive_directory_iterator(scratch.path())) {
            std::error_code error;
            if (entry.is_regular_file(error) && entry.file_size(error) > 0) return true;
        }
        return false;
    };
    int status = 0;
    while (!begun() && ::waitpid(child, &status, WNOHANG) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(child, SIGINT);
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 130);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
}

}  // namespace
}  // namespace dgemma::cli
