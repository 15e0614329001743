// The numbers that are published with google/diffusiongemma-26B-A4B-it, and how far a model is from them: how
// someone who has the real weights finds out whether we are right (contract/goldens.md A, B and D).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/generator.h"
#include "engine/loaded_model.h"
#include "files/checkpoint.h"
#include "model/config.h"

namespace dgemma::engine {

// The ids of kPublishedQuestion, rendered as a conversation.
inline constexpr std::string_view kPublishedQuestion = "Write a long essay about Portugal.";
struct PublishedPrompt {
    bool thinking = false;
    std::span<const std::int32_t> ids;
};
std::span<const PublishedPrompt> published_prompts();

// Softcapped logits of a canvas row for the first entries of the vocabulary.
inline constexpr int kPublishedColumns = 12;
inline constexpr float kPublishedSoftcap = 30;
struct PublishedRow {
    int row = 0;
    std::array<float, kPublishedColumns> logits{};
};

// A first pass (no self-conditioning) over the canvas 0, 1, ..., 255 behind published_prompts()[0].
struct PublishedLogits {
    int layers = 0;  // the first so many, then the last norm and the head
    std::span<const PublishedRow> rows;
    // The same of another maker's card: how far two right answers are apart. May be empty.
    std::span<const PublishedRow> elsewhere;
};
// Those of so many layers; null if none are published.
const PublishedLogits* published_logits(int layers);

// Whether this can be the published model, or one fine-tuned from it: its shapes, and no pack of random
// weights. (The weights themselves are not looked at.)
bool has_published_shapes(const model::Config& config, const files::Checkpoint& checkpoint);

struct LogitComparison {
    double largest = 0;  // of |ours - published|, softcapped
    // Of the numbers before the cap, c atanh(z / c): the cap hides how far large ones are off.
    double relative_rms = 0;  // |ours - published| / |published|
    double cosine = 0;        // 0 where no number was finite
    std::int64_t broken = 0;  // numbers of ours that are not finite
};
// got: for each of `rows` in turn the logits of its first kPublishedColumns entries.
LogitComparison compare_logits(std::span<const float> got, std::span<const PublishedRow> rows);

// The softcapped logits of a first pass over `canvas` behind `prompt`, for each of `rows` (places in the
// canvas) the first `columns`. Errors: those of Model::encode and denoise.
Result<std::vector<float>> first_pass_logits(LoadedModel& loaded, std::span<const std::int32_t> prompt,
                                             std::span<const std::int32_t> canvas, std::span<const int> rows,
                                             int columns);

// Loads published.layers layers and compares. Errors: those of loading and running.
Result<LogitComparison> compare_with_published(const files::Checkpoint& checkpoint, LoadOptions options,
                                               const PublishedLogits& published);

}  // namespace dgemma::engine
