// What a request may rely on: limits, stops, pins, seeds, cancellation, damaged weights. On the demo model.
#include "engine/generator.h"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/budget.h"
#include "files/checkpoint.h"
#include "support/shared.h"
#include "text/tokenizer.h"

namespace dgemma::testing {
namespace {

class Collect final : public engine::Sink {
  public:
    void on_prefill(const engine::PrefillEvent& e) override { prefilled = e.done; }
    void on_step(const engine::StepEvent& e) override {
        inputs.emplace_back(e.input.begin(), e.input.end());
        if (cancel_at_step >= 0 && e.step == cancel_at_step) cancel = true;
    }
    engine::BlockVerdict on_block(const engine::BlockEvent& e) override {
        ids.insert(ids.end(), e.ids.begin(), e.ids.end());
        canvases.emplace_back(e.canvas.begin(), e.canvas.end());
        return engine::BlockVerdict::go_on;
    }
    void on_end(const engine::EndEvent&) override { ++ends; }

    std::vector<std::int32_t> ids;
    std::vector<std::vector<std::int32_t>> canvases, inputs;
    int prefilled = 0, ends = 0, cancel_at_step = -1;
    std::atomic<bool> cancel = false;
};

class GeneratorTest : public ::testing::Test {
  protected:
    static engine::Generator& generator() {
        static const files::Checkpoint checkpoint = files::Checkpoint::open(demo_dir()).value();
        static const std::unique_ptr<engine::Generator> one =
            engine::Generator::load(checkpoint, {.threads = 2}).value();
        return *one;
    }
    static std::vector<std::int32_t> ids_of(const std::string& text) {
        static const text::Tokenizer tokenizer = text::Tokenizer::load(demo_dir() / "tokenizer.json").value();
        return tokenizer.encode(text, text::Specials::parse);
    }
    static engine::Request request(const std::string& question = "What is the capital of France?") {
        engine::Request r;
        r.prompt = ids_of("<bos><|turn>user\n" + question + "<turn|>\n<|turn>model\n");
        r.diffusion = generator().default_options();
        return r;
    }
    static engine::EndEvent run(const engine::Request& r, Collect& sink) {
        return generator().generate(r, sink).value();
    }
};

TEST_F(GeneratorTest, AnswersAndSaysHowItEnded) {
    Collect sink;
    const engine::EndEvent end = run(request(), sink);
    EXPECT_EQ(sink.ids, ids_of("The capital of France is Paris."));
    EXPECT_EQ(end.reason, engine::FinishReason::stop);
    EXPECT_EQ(end.stop_id, 106);
    EXPECT_EQ(end.stats.output_tokens, static_cast<int>(sink.ids.size()));
    EXPECT_EQ(end.stats.prompt_tokens, sink.prefilled);
    EXPECT_EQ(end.stats.steps, static_cast<int>(sink.inputs.size()));
    ASSERT_EQ(end.stats.blocks.size(), 1u);
    EXPECT_EQ(end.stats.blocks[0].stop_rule, "stable");
    EXPECT_EQ(end.stats.blocks[0].trimmed, 128 - end.stats.output_tokens);
    EXPECT_EQ(sink.ends, 1);
}

TEST_F(GeneratorTest, MaxTokensIsExact) {
    for (const int wanted : {1, 2, 17, 127, 128, 129, 200}) {
        engine::Request r = request("Count from 1 to 60.");
        r.max_tokens = wanted;
        r.diffusion.max_steps = 6;
        r.stop_ids = {2047};  // an id it does not write here
        Collect sink;
        const engine::EndEvent end = run(r, sink);
        EXPECT_EQ(static_cast<int>(sink.ids.size()), wanted);
        EXPECT_EQ(end.stats.output_tokens, wanted);
        EXPECT_EQ(end.reason, engine::FinishReason::length);
        EXPECT_EQ(static_cast<int>(sink.canvases.size()), (wanted + 127) / 128);
        EXPECT_EQ(end.stats.blocks.back().trimmed, (128 - wanted % 128) % 128);
    }
}

TEST_F(GeneratorTest, SameSeedSameIdsWithAnyNumberOfThreadsHeavy) {
    const files::Checkpoint checkpoint = files::Checkpoint::open(demo_dir()).value();
    std::vector<std::vector<std::int32_t>> seen;
    for (const int threads : {1, 2, 5}) {
        auto g = engine::Generator::load(checkpoint, {.threads = threads}).value();
        for (int repeat = 0; repeat < 2; ++repeat) {
            engine::Request r = request("Write a short story.");
            r.diffusion.seed = 11;
            r.diffusion.max_steps = 12;
            r.diffusion.temperature = 1;
            Collect sink;
            ASSERT_TRUE(g->generate(r, sink).ok());
            seen.push_back(sink.canvases.at(0));
            EXPECT_EQ(seen.back(), seen.front()) << threads;
        }
    }
    engine::Request r = request("Write a short story.");
    r.diffusion.seed = 12;
    r.diffusion.max_steps = 12;
    r.diffusion.temperature = 1;
    Collect sink;
    run(r, sink);
    EXPECT_NE(sink.inputs.at(0), std::vector<std::int32_t>(128, sink.inputs[0][0]));
    EXPECT_NE(sink.canvases.at(0), seen.front()) << "another seed draws something else";
}

// Known bug D12, D39: nothing of an earlier request is left.
TEST_F(GeneratorTest, ARequestDoesNotDependOnWhatRanBeforeHeavy) {
    Collect cold, warm, other;
    engine::Request r = request("Sort: 5 3 9 1.");
    run(r, cold);
    engine::Request aborted = request("Write a long story about a cat.");
    other.cancel_at_step = 1;
    aborted.cancel = &other.cancel;
    EXPECT_EQ(run(aborted, other).reason, engine::FinishReason::cancelled);
    EXPECT_TRUE(other.ids.empty());
    EXPECT_EQ(other.ends, 1);
    run(r, warm);
    EXPECT_EQ(warm.ids, cold.ids);
    EXPECT_EQ(warm.inputs, cold.inputs);
}

TEST_F(GeneratorTest, StopIdsEndTheReplyWhereTheyStand) {
    Collect whole;
    run(request(), whole);
    for (std::size_t i = 0; i < whole.ids.size(); ++i) {
        if (std::find(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(i), whole.ids[i]) !=
            whole.ids.begin() + static_cast<std::ptrdiff_t>(i))
            continue;
        engine::Request r = request();
        r.stop_ids = {whole.ids[i]};
        r.exact = true;  // no re-roll of the empty reply
        Collect sink;
        const engine::EndEvent end = run(r, sink);
        EXPECT_EQ(sink.ids.size(), i);
        EXPECT_EQ(end.stop_id, whole.ids[i]);
    }
}

TEST_F(GeneratorTest, AnEmptyReplyIsRolledAgain) {
    Collect whole;
    run(request(), whole);
    engine::Request r = request();
    r.stop_ids = {whole.ids[0]};
    Collect sink;
    const engine::EndEvent end = run(r, sink);
    ASSERT_EQ(end.stats.blocks.size(), 1u);
    EXPECT_EQ(end.stats.blocks[0].attempts,
              4);  // the stop id always comes first here, so all re-rolls are spent
    EXPECT_EQ(end.stats.blocks[0].guards, std::vector<std::string>{"empty_reply_reroll"});
    EXPECT_EQ(sink.canvases.at(0).size(), 32u);  // 128, 64, 32, 32
}

TEST_F(GeneratorTest, AStopIdInsideAQuoteIsContent) {
    Collect whole;
    run(request(), whole);
    engine::Request r = request();
    r.stop_ids = {whole.ids[2], 106};
    r.inside_quote = [](std::span<const std::int32_t> reply) { return reply.size() == 2; };
    Collect sink;
    const engine::EndEvent end = run(r, sink);
    EXPECT_EQ(sink.ids, whole.ids);
    EXPECT_EQ(end.stop_id, 106);
    EXPECT_EQ(end.stats.blocks[0].guards, std::vector<std::string>{"tool_aware_stop"});
}

// A quote that the model forgot to close would make content of every stop id, block after block.
TEST_F(GeneratorTest, StopIdsUpToTheEndOfACanvasEndTheReplyInsideAQuoteToo) {
    Collect whole;
    const engine::EndEvent known = run(request(), whole);
    engine::Request r = request();
    r.inside_quote = [](std::span<const std::int32_t>) { return true; };
    Collect sink;
    const engine::EndEvent end = run(r, sink);
    EXPECT_EQ(sink.ids, whole.ids);
    EXPECT_EQ(end.stop_id, known.stop_id);
    EXPECT_EQ(end.stats.blocks.size(), 1u);
}

TEST_F(GeneratorTest, PinnedPositionsAreFedAndCommitted) {
    engine::Request r = request();
    r.pins = {{0, ids_of("Paris").at(0)}, {5, 777}};
    Collect sink;
    run(r, sink);
    for (const auto& input : sink.inputs) {
        EXPECT_EQ(input[0], r.pins[0].id);
        EXPECT_EQ(input[5], 777);
    }
    EXPECT_EQ(sink.canvases.at(0)[0], r.pins[0].id);
    EXPECT_EQ(sink.canvases.at(0)[5], 777);
    r.pins = {{128, 1}};
    EXPECT_EQ(generator().generate(r, sink).error().kind, ErrorKind::usage);
    r.pins = {{3, 2048}};
    EXPECT_EQ(generator().generate(r, sink).error().kind, ErrorKind::usage);
}

TEST_F(GeneratorTest, CanvasLengthAndShrinkRule) {
    engine::Request r = request();
    r.canvas_length = 48;
    Collect sink;
    run(r, sink);
    EXPECT_EQ(sink.canvases.at(0).size(), 48u);
    r.canvas_length = 0;
    r.shrink_canvas = true;
    r.max_tokens = 70;
    Collect shrunk;
    run(r, shrunk);
    EXPECT_EQ(shrunk.canvases.at(0).size(), 70u);
}

TEST_F(GeneratorTest, NonsenseIsRefusedBeforeAnyWork) {
    const auto refused = [](const engine::Request& r) {
        Collect sink;
        const auto result = generator().generate(r, sink);
        EXPECT_FALSE(result.ok());
        EXPECT_EQ(sink.prefilled, 0);
        return result ? Error{} : result.error();
    };
    engine::Request r = request();
    r.prompt.clear();
    EXPECT_EQ(refused(r).kind, ErrorKind::usage);
    r.prompt = {5, 2048};
    EXPECT_NE(refused(r).message.find("2048"), std::string::npos);
    r.prompt = {-1};
    EXPECT_EQ(refused(r).kind, ErrorKind::usage);
    r = request();
    r.prompt.resize(4096 - 100, 300);
    const Error full = refused(r);
    EXPECT_EQ(full.kind, ErrorKind::context_length);
    EXPECT_NE(full.message.find("3996"), std::string::npos) << full.message;
    EXPECT_NE(full.message.find("4096"), std::string::npos) << full.message;
    r = request();
    r.max_tokens = 4096;
    EXPECT_EQ(refused(r).kind, ErrorKind::context_length);
    r = request();
    r.max_tokens = -5;
    EXPECT_EQ(refused(r).kind, ErrorKind::usage);
    r = request();
    r.diffusion.max_steps = 0;
    EXPECT_EQ(refused(r).kind, ErrorKind::usage);
    r = request();
    r.diffusion.t_max = r.diffusion.t_min;
    EXPECT_EQ(refused(r).kind, ErrorKind::usage);
}

TEST(Budget, CountsWholeCanvases) {
    const engine::Budget b = engine::plan_budget(100, 0, 128, false, 4096).value();
    EXPECT_EQ(b.max_tokens, 31 * 128);
    EXPECT_EQ(engine::plan_budget(10, 0, 256, false, 262144).value().max_tokens, engine::kDefaultMaxTokens);
    EXPECT_EQ(engine::plan_budget(3840, 256, 256, false, 4096).value().positions, 4096);
    EXPECT_FALSE(engine::plan_budget(3841, 256, 256, false, 4096).ok());
    EXPECT_FALSE(engine::plan_budget(3840, 257, 256, false, 4096).ok());
    EXPECT_EQ(engine::plan_budget(3900, 64, 256, true, 4096).value().positions, 3964);
    EXPECT_FALSE(engine::plan_budget(2147483647, 1, 256, false, 4096).ok());
    EXPECT_FALSE(engine::plan_budget(1, 2147483647, 256, false, 4096).ok());
}

// A copy of the demo checkpoint with one element of one tensor made NaN.
class Damaged {
  public:
    explicit Damaged(const std::string& tensor)
        : dir_(std::filesystem::temp_directory_path() / ("dgemma-damaged-" + std::to_string(::getpid()))) {
        std::filesystem::remove_all(dir_);
        std::filesystem::copy(demo_dir(), dir_);
        for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
            if (entry.path().extension() != ".safetensors") continue;
            std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
            std::uint64_t length = 0;
            file.read(reinterpret_cast<char*>(&length), 8);
            std::string header(length, ' ');
            file.read(header.data(), static_cast<std::streamsize>(length));
            const auto json = nlohmann::json::parse(header);
            if (!json.contains(tensor)) continue;
            const std::uint16_t nan = 0x7FC0;
            file.seekp(static_cast<std::streamoff>(8 + length +
                                                   json[tensor]["data_offsets"][0].get<std::uint64_t>()));
            file.write(reinterpret_cast<const char*>(&nan), 2);
            found = true;
        }
    }
    ~Damaged() { std::filesystem::remove_all(dir_); }
    Damaged(const Damaged&) = delete;
    Damaged& operator=(const Damaged&) = delete;
    [[nodiscard]] const std::filesystem::path& dir() const { return dir_; }
    bool found = false;

  private:
    std::filesystem::path dir_;
};

TEST_F(GeneratorTest, ANaNEndsTheRequestAndNamesLayerAndStep) {
    struct Case {
        const char* tensor;
        const char* says;
        bool in_prefill;
    };
    for (const Case& c : {Case{"model.decoder.layers.5.mlp.down_proj.weight", "layer 5", true},
                          Case{"model.decoder.layers.7.self_attn.k_proj.weight", "layer 7", true},
                          Case{"model.decoder.layers.2.layer_scalar", "layer 2", false},
                          Case{"model.decoder.norm.weight", "head", false}}) {
        const Damaged damaged(c.tensor);
        ASSERT_TRUE(damaged.found) << c.tensor;
        const files::Checkpoint checkpoint = files::Checkpoint::open(damaged.dir()).value();
        auto g = engine::Generator::load(checkpoint, {.threads = 2}).value();
        Collect sink;
        const auto result = g->generate(request(), sink);
        ASSERT_FALSE(result.ok()) << c.tensor;
        EXPECT_EQ(result.error().kind, ErrorKind::non_finite);
        EXPECT_NE(result.error().message.find(c.says), std::string::npos) << result.error().message;
        EXPECT_EQ(result.error().message.find("step") != std::string::npos, !c.in_prefill)
            << result.error().message;
        EXPECT_TRUE(sink.ids.empty());
        EXPECT_TRUE(sink.inputs.empty());
    }
}

}  // namespace
}  // namespace dgemma::testing
