// What random weights do when the engine runs them: the numbers stay sane, the experts are all used, and the
// head's rows have the shape that was asked for.
#include "model/synthetic.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "diffusion/noise.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "support/scratch.h"

namespace dgemma::model {
namespace {

using testing::ScratchDir;

// Experts chosen and the size of the rows, layer by layer.
struct Watcher : Probe {
    int experts = 0, top_k = 0;
    std::vector<std::size_t> used;
    double least_size = INFINITY, greatest_size = 0;

    void see(Stage stage, int /*layer*/, std::span<const float> values) override {
        if (stage == Stage::router) {
            std::set<std::ptrdiff_t> chosen;
            const auto e = static_cast<std::size_t>(experts);
            for (std::size_t row = 0; row < values.size() / e; ++row) {
                std::vector<std::ptrdiff_t> order(e);
                for (std::size_t i = 0; i < e; ++i) order[i] = static_cast<std::ptrdiff_t>(i);
                const float* p = values.data() + row * e;
                std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                                  [&](auto a, auto b) { return p[a] > p[b]; });
                chosen.insert(order.begin(), order.begin() + top_k);
            }
            used.push_back(chosen.size());
        }
        if (stage == Stage::layer) {
            double squares = 0;
            for (const float v : values) squares += double{v} * double{v};
            const double size = std::sqrt(squares / static_cast<double>(values.size()));
            least_size = std::min(least_size, size);
            greatest_size = std::max(greatest_size, size);
        }
    }
};

struct Trial {
    Watcher prefill, first, second;
    std::vector<double>
        kept;  // of each row of the second pass, the share of entries from e^-10 of its maximum
};

Trial run(std::string_view preset, int layers, LogitShape logits) {
    const ScratchDir scratch;
    const std::string text = *preset_config(preset, layers);
    const auto config = parse_config(text, "preset");
    EXPECT_TRUE(config) << config.error().message;
    ThreadPool pool(2);
    {
        auto writer = files::PackWriter::create(scratch.path() / "model", false, 0);
        EXPECT_TRUE(writer);
        for (const PlannedTensor& planned : plan_synthetic_pack(*config, *choose_formats("bf16", {}))) {
            const auto rows = synthetic_rows(planned, *config, logits, 7);
            EXPECT_TRUE((*writer)->add(planned.item, *rows, pool, {}));
        }
        EXPECT_TRUE((*writer)->add_file("config.json", text));
        EXPECT_TRUE((*writer)->commit({}));
    }
    const auto checkpoint = files::Checkpoint::open(scratch.path() / "model");
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    const auto backend = backend::make_plain_backend(backend::Precision::f32, 2);
    auto weights = load_weights(*checkpoint, *config, *backend);
    EXPECT_TRUE(weights) << weights.error().message;
    Model model(*config, std::move(weights).value(), *backend);
    KvCache cache(*config, *backend, 128, Dtype::f32);

    Trial out;
    for (Watcher* watcher : {&out.prefill, &out.first, &out.second}) {
        watcher->experts = config->text.experts;
        watcher->top_k = config->text.top_k;
    }
    const int vocab = config->text.vocab_size;
    const auto noise = diffusion::make_noise(diffusion::Noise::counter, 3, vocab);
    std::vector<std::int32_t> prompt(100), ids(static_cast<std::size_t>(config->canvas_length));
    EXPECT_TRUE(noise->initial_canvas({1000, 0}, prompt));
    EXPECT_TRUE(noise->initial_canvas({0, 0}, ids));
    EXPECT_TRUE(model.encode(cache, prompt, &out.prefill));
    const auto made = backend->make_logits(config->canvas_length, vocab);
    backend::Logits& rows = **made;
    Canvas canvas{.cache = &cache, .ids = ids, .temperature = 0.8f, .logits = &rows};
    EXPECT_TRUE(model.denoise(std::span(&canvas, 1), &out.first));
    canvas.self_condition = true;
    EXPECT_TRUE(model.denoise(std::span(&canvas, 1), &out.second));
    for (int r = 0; r < config->canvas_length; ++r) {
        EXPECT_TRUE(rows.stats()[static_cast<std::size_t>(r)].finite);
        const auto row = rows.row(r);
        const float top = *std::max_element(row.begin(), row.end());
        const auto near = std::count_if(row.begin(), row.end(), [&](float z) { return z >= top - 10; });
        out.kept.push_back(static_cast<double>(near) / vocab);
    }
    return out;
}

void expect_sane(const Trial& run, std::size_t experts) {
    for (const Watcher* watcher : {&run.prefill, &run.first, &run.second}) {
        EXPECT_GT(watcher->least_size, 0.5);
        EXPECT_LT(watcher->greatest_size, 25);
    }
    for (const Watcher* watcher : {&run.first, &run.second}) {
        ASSERT_FALSE(watcher->used.empty());
        for (std::size_t l = 0; l < watcher->used.size(); ++l)
            EXPECT_GE(watcher->used[l], experts) << "layer " << l;
    }
}

TEST(Synthetic, ThirtyLayersStaySaneAndUseTheirExperts) {
    for (const LogitShape logits : {LogitShape::flat, LogitShape::peaked})
        expect_sane(run("tiny", 30, logits), 120);
}

TEST(Synthetic, FlatRowsHaveNothingToLeaveOut) {
    for (const double kept : run("tiny", 6, LogitShape::flat).kept) EXPECT_EQ(kept, 1);
}

TEST(Synthetic, PeakedRowsKeepOneEntryInAHundred) {
    const Trial peaked = run("tiny", 6, LogitShape::peaked);
    double sum = 0;
    for (const double kept : peaked.kept) sum += kept;
    EXPECT_LE(sum / static_cast<double>(peaked.kept.size()), 0.01);
    EXPECT_GE(sum, 1.0 / 4096 * static_cast<double>(peaked.kept.size()));
}

TEST(Synthetic, PresetsAreConfigurationsOfTheirSizes) {
    const auto real = parse_config(*preset_config("26b", 0), "26b");
    ASSERT_TRUE(real) << real.error().message;
    EXPECT_EQ(real->text.layers.size(), 30u);
    std::int64_t elements = 0;
    for (const ExpectedTensor& expected : expected_tensors(*real)) elements += elements_of(expected.shape);
    EXPECT_EQ(elements, 25'250'986'812);  // contract/checkpoints.md 0: of the text stack
    for (const std::size_t full : {5, 11, 17, 23, 29}) {
        EXPECT_EQ(real->text.layers[full].kind, LayerKind::full);
        EXPECT_EQ(real->text.layers[full].head_dim, 512);
        EXPECT_EQ(real->text.layers[full].kv_heads, 2);
    }
    const auto six = parse_config(*preset_config("26b", 6), "26b");
    ASSERT_TRUE(six);
    EXPECT_EQ(six->text.layers.size(), 6u);
    EXPECT_EQ(six->text.layers[5].kind, LayerKind::full);
    EXPECT_EQ(six->text.layers[4].kind, LayerKind::sliding);
    EXPECT_FALSE(six->vision);
    for (const std::string_view name : preset_names())
        EXPECT_TRUE(parse_config(*preset_config(name, 3), name)) << name;
    EXPECT_FALSE(preset_config("27b", 0));
    EXPECT_TRUE(parse_generation_config(preset_generation_config(), "g"));
}

TEST(Synthetic, NumbersDependOnSeedTensorAndPlaceAlone) {
    const auto config = parse_config(*preset_config("tiny", 2), "tiny");
    const auto row_of = [&](std::string_view name, std::int64_t row, std::uint64_t seed) {
        for (const PlannedTensor& planned : plan_synthetic_pack(*config, *choose_formats("q4", {}))) {
            if (planned.item.name != name) continue;
            std::vector<float> out(static_cast<std::size_t>(planned.item.form.shape.back()));
            synthetic_rows(planned, *config, LogitShape::flat, seed)->read(row, out.data());
            return out;
        }
        return std::vector<float>();
    };
    const std::string q = "model.decoder.layers.0.self_attn.q_proj.weight",
                      q1 = "model.decoder.layers.1.self_attn.q_proj.weight";
    ASSERT_FALSE(row_of(q, 3, 1).empty());
    EXPECT_EQ(row_of(q, 3, 1), row_of(q, 3, 1));
    EXPECT_NE(row_of(q, 3, 1), row_of(q, 4, 1));
    EXPECT_NE(row_of(q, 3, 1), row_of(q, 3, 2));
    EXPECT_NE(row_of(q, 3, 1), row_of(q, 3, std::uint64_t{1} << 40 | 1));
    EXPECT_NE(row_of(q, 3, 1), row_of(q1, 3, 1));
}

}  // namespace
}  // namespace dgemma::model
