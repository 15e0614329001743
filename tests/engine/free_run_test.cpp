// Nothing but the noise tape is given: the engine must reproduce every step, their number and the final ids
// of the reference's runs (goldens/hf/README: calm-f32 and the demo traces; text-f32 is chaotic and not run
// freely).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include <gtest/gtest.h>

#include "diffusion/finalise.h"
#include "diffusion/tape.h"
#include "engine/generator.h"
#include "files/checkpoint.h"
#include "support/shared.h"

namespace dgemma::testing {
namespace {

// Whom the runs judge: see tests/model/golden_model.h.
#if defined(DGEMMA_TEST_CUDA)
constexpr engine::BackendKind judged[] = {engine::BackendKind::cuda};
#else
constexpr engine::BackendKind judged[] = {engine::BackendKind::plain, engine::BackendKind::reference};
#endif

// What one golden run recorded of one row of its batch.
struct Recording {
    const Golden& golden;
    std::string name;
    std::size_t row = 0;

    [[nodiscard]] std::vector<std::int32_t> at(int step, const std::string& what) const {
        const std::string tensor = name + ".step" + std::to_string(step) + "." + what;
        return row_of(golden.i32(tensor), golden.shape(tensor));
    }
    [[nodiscard]] std::vector<float> entropy(int step) const {
        const std::string tensor = name + ".step" + std::to_string(step) + ".entropy";
        const std::vector<float> all = golden.f32(tensor);
        const auto n = static_cast<std::size_t>(golden.shape(tensor).back());
        return {all.begin() + static_cast<std::ptrdiff_t>(row * n),
                all.begin() + static_cast<std::ptrdiff_t>((row + 1) * n)};
    }
    [[nodiscard]] std::vector<std::int32_t> row_of(const std::vector<std::int32_t>& all,
                                                   const Shape& shape) const {
        const auto n = static_cast<std::ptrdiff_t>(shape.back());
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row) * n;
        return {begin, begin + n};
    }
    // Canvases in the order drawn: [draws, batch, canvas].
    [[nodiscard]] diffusion::Tape::Canvases canvases() const {
        const std::vector<std::int32_t> all = golden.i32(name + ".random_canvases");
        const Shape shape = golden.shape(name + ".random_canvases");
        const auto batch = static_cast<std::size_t>(shape[1]), n = static_cast<std::size_t>(shape[2]);
        diffusion::Tape::Canvases out;
        for (std::size_t d = 0; d < static_cast<std::size_t>(shape[0]); ++d) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>((d * batch + row) * n);
            out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(n));
        }
        return out;
    }
    [[nodiscard]] bool has_step(int step) const {
        return golden.has(name + ".step" + std::to_string(step) + ".argmax");
    }
    [[nodiscard]] diffusion::Tape::Canvases draws() const {
        diffusion::Tape::Canvases out;
        for (int i = 0; has_step(i); ++i) out.push_back(at(i, "denoiser_canvas"));
        return out;
    }
};

// Compares each step as it happens.
class Compare final : public engine::Sink {
  public:
    // strict: every step has the recorded canvases; else only the number of steps and the result do.
    Compare(const Recording& recording, bool sampled, bool strict = true)
        : recording_(recording), sampled_(sampled), strict_(strict) {}

    void on_step(const engine::StepEvent& e) override {
        const int i = steps++;
        if (!recording_.has_step(i)) {
            ADD_FAILURE() << recording_.name << ": step " << i << " is one too many";
            return;
        }
        if (!strict_) return;
        const auto ints = [](auto span) { return std::vector<std::int32_t>(span.begin(), span.end()); };
        EXPECT_EQ(ints(e.input), recording_.at(i, "input_canvas")) << recording_.name << " step " << i;
        EXPECT_EQ(ints(e.argmax), recording_.at(i, "argmax")) << recording_.name << " step " << i;
        EXPECT_EQ(ints(e.accept), recording_.at(i, "accept_mask")) << recording_.name << " step " << i;
        if (!sampled_) {
            EXPECT_EQ(ints(e.argmax), recording_.at(i, "denoiser_canvas"));
        }
        const std::vector<float> entropy = recording_.entropy(i);
        double mean = 0;
        for (const float h : entropy) mean += h;
        EXPECT_NEAR(e.mean_entropy, mean / static_cast<double>(entropy.size()), 1e-3)
            << recording_.name << " step " << i;
    }
    engine::BlockVerdict on_block(const engine::BlockEvent& e) override {
        blocks.insert(blocks.end(), e.canvas.begin(), e.canvas.end());
        return engine::BlockVerdict::go_on;
    }

    int steps = 0;
    std::vector<std::int32_t> blocks;

  private:
    const Recording& recording_;
    bool sampled_, strict_;
};

std::unique_ptr<engine::Generator> load(const files::Checkpoint& checkpoint,
                                        engine::LoadOptions options = {}) {
    auto generator = engine::Generator::load(checkpoint, options);
    if (!generator) throw std::runtime_error(generator.error().message);
    return std::move(generator).value();
}

// The settings of a recorded run: generation_config.json's keys.
void apply(const nlohmann::json& args, engine::Request& request) {
    request.max_tokens = args.at("max_new_tokens").get<int>();
    request.diffusion.max_steps = args.at("max_denoising_steps").get<int>();
    request.diffusion.t_min = args.at("t_min").get<double>();
    request.diffusion.t_max = args.at("t_max").get<double>();
    request.diffusion.stability_threshold = args.at("stability_threshold").get<int>();
    request.diffusion.confidence_threshold = args.at("confidence_threshold").get<float>();
    request.diffusion.entropy_bound = args.at("sampler_config").at("entropy_bound").get<float>();
    request.stop_ids = args.at("eos_token_id").get<std::vector<std::int32_t>>();
}

// The reference's last block has pads behind its stop id.
std::vector<std::int32_t> finalised(std::vector<std::int32_t> blocks, int canvas,
                                    const std::vector<std::int32_t>& stops) {
    const std::size_t last = blocks.size() - static_cast<std::size_t>(canvas);
    diffusion::finalise(std::span(blocks).subspan(last), false, stops, 0);
    return blocks;
}

TEST(FreeRun, CalmTextCases) {
    const std::filesystem::path dir = *golden_dir("calm-f32");
    const Golden golden(dir);
    const files::Checkpoint checkpoint = files::Checkpoint::open(dir / "checkpoint").value();
    int runs = 0;
    for (const auto backend : judged) {
        auto generator = load(checkpoint, {.backend = backend, .threads = 2});
        for (const auto& [name, info] : golden.info().items()) {
            if (info.contains("images")) continue;
            const bool sampled = !info.at("greedy").get<bool>();
            const auto prompts = info.at("prompt_ids").get<std::vector<std::vector<std::int32_t>>>();
            if (prompts.size() != 1) continue;  // FreeRun.CalmBatch
            const Recording recording{golden, name};
            engine::Request request;
            request.prompt = prompts[0];
            request.exact = true;
            request.diffusion = generator->default_options();
            request.diffusion.temperature = sampled ? 1.0f : 0.0f;
            apply(info.at("args"), request);
            diffusion::Tape tape(recording.canvases(), recording.draws());
            request.noise = &tape;
            Compare compare(recording, sampled);
            const auto end = generator->generate(request, compare);
            ASSERT_TRUE(end.ok()) << end.error().message;
            EXPECT_EQ(compare.steps, info.at("steps").get<int>()) << name;
            EXPECT_EQ(tape.canvases_left(), 0u) << name;
            std::vector<std::int32_t> ids = request.prompt;
            const auto blocks =
                finalised(compare.blocks, generator->config().canvas_length, request.stop_ids);
            ids.insert(ids.end(), blocks.begin(), blocks.end());
            EXPECT_EQ(ids, golden.i32(name + ".sequences")) << name;
            ++runs;
        }
    }
    EXPECT_EQ(runs, 8 * static_cast<int>(std::size(judged)));
}

void run_demo_traces(const Golden& golden, backend::Precision precision,
                     const std::function<bool(const std::string&, int steps)>& wanted, int expected_runs) {
    const files::Checkpoint checkpoint = files::Checkpoint::open(demo_dir()).value();
    auto generator = load(checkpoint, {.backend = judged[0], .precision = precision, .threads = 2});
    int runs = 0;
    for (const auto& [name, info] : golden.info().items()) {
        if (info.contains("image") || info.contains("images") || !wanted(name, info.at("steps").get<int>()))
            continue;
        const bool sampled = name.ends_with("_sampled");
        const Recording recording{golden, name};
        engine::Request request;
        request.prompt = info.at("prompt_ids").get<std::vector<std::int32_t>>();
        request.exact = true;
        request.diffusion = generator->default_options();
        request.diffusion.temperature = sampled ? 1.0f : 0.0f;
        request.max_tokens = generator->generation_config().max_new_tokens;
        diffusion::Tape tape(recording.canvases(), recording.draws());
        request.noise = &tape;
        // The recorded bf16 run rounded attention's scores and weights, as the CPU's backends do and the
        // GPU's does not: a row whose entropy lies at the bound falls to the other side.
        const bool strict = judged[0] != engine::BackendKind::cuda || precision == backend::Precision::f32;
        Compare compare(recording, sampled, strict);
        const auto end = generator->generate(request, compare);
        ASSERT_TRUE(end.ok()) << end.error().message;
        EXPECT_EQ(compare.steps, info.at("steps").get<int>()) << name;
        EXPECT_EQ(tape.canvases_left(), 0u) << name;
        EXPECT_EQ(finalised(compare.blocks, generator->config().canvas_length, {1, 106, 50}),
                  info.at("output_ids").get<std::vector<std::int32_t>>())
            << name;
        ++runs;
    }
    EXPECT_EQ(runs, expected_runs);
}

TEST(FreeRun, DemoTracesF32Heavy) {
    run_demo_traces(
        Golden(*golden_dir("demo-traces"), "f32"), backend::Precision::f32, [](auto&, int) { return true; },
        14);
}

// In bf16 the settled runs of two steps hold; `count`, `story`, `grid` part on the last bits, as they do
// between any two bf16 implementations.
TEST(FreeRun, DemoTracesBf16OfTwoSteps) {
    const auto dir = shared_dir();
    DGEMMA_SKIP_WITHOUT(dir && std::filesystem::exists(*dir / "goldens/hf/demo-traces/bf16.safetensors"),
                        "goldens/hf/demo-traces/bf16");
    run_demo_traces(
        Golden(*dir / "goldens/hf/demo-traces", "bf16"), backend::Precision::bf16,
        [](auto&, int steps) { return steps == 2; }, 8);
}

// `count` parts on the way and ends alike.
TEST(FreeRun, DemoCountBf16EndsAlike) {
    const auto dir = shared_dir();
    DGEMMA_SKIP_WITHOUT(dir && std::filesystem::exists(*dir / "goldens/hf/demo-traces/bf16.safetensors"),
                        "goldens/hf/demo-traces/bf16");
    const Golden golden(*dir / "goldens/hf/demo-traces", "bf16");
    const files::Checkpoint checkpoint = files::Checkpoint::open(demo_dir()).value();
    auto generator = load(checkpoint, {.precision = backend::Precision::bf16, .threads = 2});
    const Recording recording{golden, "count"};
    engine::Request request;
    request.prompt = golden.info().at("count").at("prompt_ids").get<std::vector<std::int32_t>>();
    request.exact = true;
    request.diffusion = generator->default_options();
    request.max_tokens = 256;
    // The run may take some steps more than the recording's noise lasts.
    diffusion::Tape::Canvases canvases = recording.canvases();
    for (int i = 0; i < 48; ++i)
        canvases.push_back(canvases[static_cast<std::size_t>(i) % recording.canvases().size()]);
    diffusion::Tape tape(std::move(canvases));
    request.noise = &tape;
    struct Blocks final : engine::Sink {
        engine::BlockVerdict on_block(const engine::BlockEvent& e) override {
            ids.insert(ids.end(), e.canvas.begin(), e.canvas.end());
            return engine::BlockVerdict::go_on;
        }
        std::vector<std::int32_t> ids;
    } blocks;
    const auto end = generator->generate(request, blocks);
    ASSERT_TRUE(end.ok()) << end.error().message;
    EXPECT_EQ(finalised(blocks.ids, generator->config().canvas_length, {1, 106, 50}),
              golden.info().at("count").at("output_ids").get<std::vector<std::int32_t>>());
}

}  // namespace
}  // namespace dgemma::testing
