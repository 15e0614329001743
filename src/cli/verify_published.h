// The second half of `verify`: what is published of the real model, beside what this one gives.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "engine/published.h"
#include "engine/verify.h"
#include "files/checkpoint.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

struct PromptComparison {
    bool thinking = false;
    std::vector<std::int32_t> got;
    std::span<const std::int32_t> want;
    // Where they first differ; want.size() if they are equal.
    [[nodiscard]] std::size_t first_difference() const;
    [[nodiscard]] bool equal() const {
        return got.size() == want.size() && first_difference() == want.size();
    }
};
// Renders as the revision of the template did that the published ids were made with, whatever revision the
// model came with; so it is the tokenizer that is compared. Errors: those of render_chat.
Result<std::vector<PromptComparison>> compare_prompts(const text::Tokenizer& tokenizer);

// What was found out about the published numbers.
struct Published {
    std::vector<PromptComparison> prompts;
    const engine::PublishedLogits* logits = nullptr;  // null: none are published of so many layers
    std::optional<engine::LogitComparison> comparison;
    std::vector<std::string> notes;  // why something was not compared
};

// The prompt with the checkpoint's tokenizer; the logits of as many layers as options.layers says (0: all),
// on options.device. `whole_fits`: whether all layers fit into memory. What cannot be compared, for want of a
// tokenizer or of memory, is noted. Errors: those of render_chat.
Result<Published> compare_published(const files::Checkpoint& checkpoint, const model::Config& config,
                                    const engine::VerifyOptions& options, const Status& whole_fits);

void print_text(const Published& published, std::ostream& out);
nlohmann::ordered_json json_of(const Published& published);

}  // namespace dgemma::cli
