// The recorded runs of the reference: fed the recorded argmax and entropy of each step, our sampler must keep
// the same positions, show the model the same canvases, stop at the same step and commit the same ids.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "diffusion/denoiser.h"
#include "diffusion/finalise.h"
#include "diffusion/noise_torch.h"
#include "diffusion/schedule.h"
#include "diffusion/scripted_rows.h"
#include "diffusion/tape.h"
#include "support/shared.h"

namespace dgemma::diffusion {
namespace {

using testing::Golden;
using Json = nlohmann::json;

template <class T>
std::vector<T> row_of(const std::vector<T>& all, std::size_t row, std::size_t width) {
    return {all.begin() + static_cast<std::ptrdiff_t>(row * width),
            all.begin() + static_cast<std::ptrdiff_t>((row + 1) * width)};
}

// One recorded run of generate().
struct Run {
    const Golden& golden;
    std::string name;
    Options options;
    Ids stop_ids;
    std::int32_t pad_id = 0;
    int max_new_tokens = 0, steps = 0;
    bool greedy = true;
    std::vector<Ids> prompts;
    std::size_t batch = 0, length = 0;
    int vocabulary = 0;

    [[nodiscard]] std::string of_step(int i, const std::string& what) const {
        return name + ".step" + std::to_string(i) + "." + what;
    }
    [[nodiscard]] Ids ids(int i, const std::string& what, std::size_t row) const {
        return row_of(golden.i32(of_step(i, what)), row, length);
    }
    [[nodiscard]] Tape::Canvases tape_of(std::size_t row) const {
        const Ids all = golden.i32(name + ".random_canvases");
        Tape::Canvases canvases;
        for (std::size_t draw = 0; draw < all.size() / (batch * length); ++draw)
            canvases.push_back(row_of(all, draw * batch + row, length));
        return canvases;
    }
};

Run read_run(const Golden& golden, const std::string& name, const Json& args, std::uint64_t seed,
             int vocabulary) {
    const Json& info = golden.info().at(name);
    Run run{.golden = golden, .name = name};
    run.options = exact_options();
    run.options.max_steps = args.at("max_denoising_steps");
    run.options.t_min = args.at("t_min");
    run.options.t_max = args.at("t_max");
    run.options.stability_threshold = args.at("stability_threshold");
    run.options.confidence_threshold = args.at("confidence_threshold");
    run.options.entropy_bound = args.at("sampler_config").at("entropy_bound");
    run.options.seed = seed;
    run.greedy = info.value("greedy", name.find("_sampled") == std::string::npos);
    run.options.temperature = run.greedy ? 0 : 1;
    run.stop_ids = args.at("eos_token_id").get<Ids>();
    run.pad_id = args.at("pad_token_id");
    run.max_new_tokens = args.at("max_new_tokens");
    run.steps = info.at("steps");
    const Json& prompts = info.at("prompt_ids");
    run.prompts =
        prompts.front().is_array() ? prompts.get<std::vector<Ids>>() : std::vector<Ids>{prompts.get<Ids>()};
    const Shape shape = golden.shape(name + ".random_canvases");
    run.batch = static_cast<std::size_t>(shape[1]);
    run.length = static_cast<std::size_t>(shape[2]);
    run.vocabulary = vocabulary;
    return run;
}

// Torch's generator from the seed. A drawn token is checked against the recording where the logits it was
// drawn from are recorded too; elsewhere its random numbers are passed over and the recorded token is taken.
class SeededNoise final : public NoiseSource {
  public:
    SeededNoise(const Run& run, int& pass)
        : run_(run), pass_(pass), torch_(run.options.seed, run.vocabulary) {}

    Status initial_canvas(BlockKey key, std::span<std::int32_t> ids) override {
        return torch_.initial_canvas(key, ids);
    }
    Status renoise(BlockKey key, int step, std::span<std::int32_t> ids) override {
        return torch_.renoise(key, step, ids);
    }
    Status draw(BlockKey key, int step, LogitRows& rows, float temperature, std::span<const std::uint8_t>,
                std::span<std::int32_t> ids) override {
        const Ids recorded = run_.ids(pass_, "denoiser_canvas", 0);
        const bool has_logits = run_.golden.has(run_.of_step(pass_, "logits"));
        const std::vector<std::uint8_t> wanted(ids.size(), has_logits);
        DGEMMA_CHECK(torch_.draw(key, step, rows, temperature, wanted, ids));
        if (has_logits) {
            EXPECT_EQ(Ids(ids.begin(), ids.end()), recorded) << run_.of_step(pass_, "denoiser_canvas");
        }
        compared_ += has_logits;
        std::copy(recorded.begin(), recorded.end(), ids.begin());
        return {};
    }
    [[nodiscard]] int compared() const { return compared_; }

  private:
    const Run& run_;
    int& pass_;
    TorchNoise torch_;
    int compared_ = 0;
};

std::unique_ptr<ScriptedRows> rows_of(const Run& run, int pass, std::size_t row, float temperature) {
    const Ids argmax = run.ids(pass, "argmax", row);
    const auto entropy = row_of(run.golden.f32(run.of_step(pass, "entropy")), row, run.length);
    if (run.greedy || !run.golden.has(run.of_step(pass, "logits")))
        return std::make_unique<ScriptedRows>(argmax, entropy);
    const auto logits = run.golden.f32(run.of_step(pass, "logits"));
    const std::size_t width = logits.size() / (run.batch * run.length);
    std::vector<std::vector<float>> zt;
    for (std::size_t i = 0; i < run.length; ++i) {
        zt.push_back(row_of(logits, row * run.length + i, width));
        for (float& z : zt.back()) z /= temperature;
    }
    auto rows = std::make_unique<ScriptedRows>(std::move(zt));
    for (std::size_t i = 0; i < run.length; ++i) {
        rows->mutable_stats()[i].argmax = argmax[i];
        rows->mutable_stats()[i].entropy = entropy[i];
    }
    return rows;
}

// Plays the run with one noise source for each row; `pass` is the overall number of the step, which a source
// may watch.
void replay(const Run& run, const std::vector<NoiseSource*>& noise, const std::vector<Tape*>& tapes,
            int& pass) {
    std::vector<Ids> sequences = run.prompts;
    std::vector<bool> finished(run.batch, false);
    std::vector<int> active(run.batch, 0);
    const Canvas canvas{.length = static_cast<int>(run.length), .vocabulary = run.vocabulary};
    const int blocks = block_count(run.max_new_tokens, canvas.length);
    pass = 0;
    bool all_finished = false;
    for (int block = 0; block < blocks && !all_finished; ++block) {
        std::vector<Denoiser> rows;
        for (std::size_t r = 0; r < run.batch; ++r) {
            auto started = Denoiser::start(run.options, canvas, *noise[r], {block, 0});
            ASSERT_TRUE(started) << run.name << ": " << started.error().message;
            rows.push_back(std::move(started).value());
        }
        bool all_done = false;
        for (int step = 0; !all_done; ++step, ++pass) {
            ASSERT_LT(pass, run.steps) << run.name << " runs on after the reference has stopped";
            all_done = true;
            for (std::size_t r = 0; r < run.batch; ++r) {
                const std::string where = run.of_step(pass, "row") + std::to_string(r);
                ASSERT_EQ(Ids(rows[r].canvas().begin(), rows[r].canvas().end()),
                          run.ids(pass, "input_canvas", r))
                    << where;
                if (rows[r].done()) {  // frozen, while its mates go on
                    tapes[r]->skip_step();
                    continue;
                }
                const auto logits = rows_of(run, pass, r, rows[r].temperature());
                auto outcome = rows[r].advance(*logits);
                ASSERT_TRUE(outcome) << where << ": " << outcome.error().message;
                const Ids accept(outcome->accept.begin(), outcome->accept.end());
                ASSERT_EQ(accept, run.ids(pass, "accept_mask", r)) << where;
                active[r] += !finished[r];
                all_done = all_done && outcome->done;
            }
        }
        all_finished = true;
        for (std::size_t r = 0; r < run.batch; ++r) {
            Ids committed(rows[r].committed().begin(), rows[r].committed().end());
            finished[r] = finalise(committed, finished[r], run.stop_ids, run.pad_id);
            sequences[r].insert(sequences[r].end(), committed.begin(), committed.end());
            all_finished = all_finished && finished[r];
        }
    }
    EXPECT_EQ(pass, run.steps) << run.name;
    const Json& info = run.golden.info().at(run.name);
    for (std::size_t r = 0; r < run.batch; ++r) {
        Ids expected;
        if (run.golden.has(run.name + ".sequences")) {
            const Ids all = run.golden.i32(run.name + ".sequences");
            expected = row_of(all, r, all.size() / run.batch);
        } else {
            expected = run.prompts[r];
            for (const std::int32_t id : info.at("output_ids").get<Ids>()) expected.push_back(id);
        }
        EXPECT_EQ(sequences[r], expected) << run.name << " row " << r;
        if (!info.contains("tokens_per_forward")) continue;
        const Json& rates = info.at("tokens_per_forward");
        const float rate = (rates.is_array() ? rates.at(r) : rates).get<float>();
        const auto prompt = static_cast<std::ptrdiff_t>(run.prompts[r].size());
        const auto tokens = std::count_if(sequences[r].begin() + prompt, sequences[r].end(),
                                          [&](std::int32_t id) { return id != run.pad_id; });
        EXPECT_EQ(static_cast<float>(tokens) / static_cast<float>(active[r]), rate)
            << run.name << " row " << r;
    }
}

void replay_from_tape(const Run& run) {
    Tape::Canvases draws;
    for (int i = 0; i < run.steps && !run.greedy; ++i) draws.push_back(run.ids(i, "denoiser_canvas", 0));
    std::vector<std::unique_ptr<Tape>> owners;
    std::vector<Tape*> tapes;
    for (std::size_t r = 0; r < run.batch; ++r) {
        owners.push_back(std::make_unique<Tape>(run.tape_of(r), draws));
        tapes.push_back(owners.back().get());
    }
    int pass = 0;
    replay(run, {tapes.begin(), tapes.end()}, tapes, pass);
    for (const Tape* tape : tapes) EXPECT_EQ(tape->canvases_left(), 0u) << run.name;
}

// -> steps whose drawn tokens were compared
int replay_from_seed(const Run& run) {
    // Every canvas of the tape, over all rows at once, as one generator fills them.
    if (run.greedy) {
        TorchRandom random(run.options.seed);
        for (const std::int32_t id : run.golden.i32(run.name + ".random_canvases"))
            EXPECT_EQ(random.below(static_cast<std::uint32_t>(run.vocabulary)), id) << run.name;
    }
    if (run.batch > 1) return 0;  // a row's share of one generator is what the tape holds
    int pass = 0;
    SeededNoise noise(run, pass);
    replay(run, {&noise}, {nullptr}, pass);
    return noise.compared();
}

void replay_tiny(const std::string& folder, int expected_runs, int expected_draws) {
    const auto dir = testing::golden_dir(folder);
    DGEMMA_SKIP_WITHOUT(dir, "goldens/hf/" + folder);
    const Golden golden(*dir);
    int runs = 0, draws = 0;
    for (const auto& [name, info] : golden.info().items()) {
        const Run run = read_run(golden, name, info.at("args"), info.at("seed"), 512);
        replay_from_tape(run);
        draws += replay_from_seed(run);
        ++runs;
        if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(runs, expected_runs);
    EXPECT_EQ(draws, expected_draws);
}

void replay_demo(const std::string& stem) {
    auto dir = testing::golden_dir("demo-traces");
    if (dir && !std::filesystem::exists(*dir / (stem + ".safetensors"))) {
        const auto shared = testing::shared_dir();
        dir = shared ? std::optional(*shared / "goldens/hf/demo-traces") : std::nullopt;
    }
    DGEMMA_SKIP_WITHOUT(dir, "goldens/hf/demo-traces/" + stem);
    const Golden golden(*dir, stem);
    const Json args = Json::parse(std::ifstream(testing::demo_dir() / "generation_config.json"));
    int runs = 0;
    for (const auto& [name, info] : golden.info().items()) {
        const Run run = read_run(golden, name, args, 7, 2048);
        replay_from_tape(run);
        replay_from_seed(run);
        ++runs;
        if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(runs, 17);
}

TEST(Replay, CalmRuns) { replay_tiny("calm-f32", 12, 2); }
TEST(Replay, TextRuns) { replay_tiny("text-f32", 6, 6); }
TEST(Replay, Bf16Runs) { replay_tiny("text-bf16-sharded", 6, 6); }
TEST(Replay, DemoRunsInF32) { replay_demo("f32"); }
TEST(Replay, DemoRunsInBf16) { replay_demo("bf16"); }

}  // namespace
}  // namespace dgemma::diffusion
