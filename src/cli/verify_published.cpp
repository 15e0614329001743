#include "cli/verify_published.h"

#include <algorithm>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/model_choice.h"
#include "text/chat_template.h"
#include "text/messages.h"

namespace dgemma::cli {

namespace {

std::string text_of(const PromptComparison& prompt) {
    if (prompt.equal()) return fmt::format("{} ids, equal", prompt.want.size());
    const std::size_t at = prompt.first_difference();
    const auto id = [&](const auto& ids) { return at < ids.size() ? std::to_string(ids[at]) : "the end"; };
    return fmt::format("differs at id {}: {}, where {} is published", at + 1, id(prompt.got),
                       id(prompt.want));
}

std::optional<engine::LogitComparison> elsewhere(const engine::PublishedLogits& logits) {
    if (logits.elsewhere.empty()) return std::nullopt;
    // The rows that both have.
    std::vector<engine::PublishedRow> rows;
    std::vector<float> other;
    for (const engine::PublishedRow& row : logits.elsewhere) {
        for (const engine::PublishedRow& want : logits.rows) {
            if (want.row == row.row) rows.push_back(want);
        }
        other.insert(other.end(), row.logits.begin(), row.logits.end());
    }
    return engine::compare_logits(other, rows);
}

nlohmann::ordered_json json_of(const engine::LogitComparison& logits) {
    return {{"largest", logits.largest},
            {"relative_rms_before_softcap", logits.relative_rms},
            {"cosine_before_softcap", logits.cosine},
            {"not_finite", logits.broken}};
}

}  // namespace

std::size_t PromptComparison::first_difference() const {
    const auto [ours, theirs] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
    return static_cast<std::size_t>(theirs - want.begin());
}

Result<std::vector<PromptComparison>> compare_prompts(const text::Tokenizer& tokenizer) {
    constexpr auto revision = text::TemplateRevision::legacy_36e3a42e;  // it opens with an empty thought
    std::vector<PromptComparison> out;
    for (const engine::PublishedPrompt& prompt : engine::published_prompts()) {
        DGEMMA_TRY(const auto segments,
                   text::render_chat(revision, text::chat_input_from_prompt("", engine::kPublishedQuestion,
                                                                            prompt.thinking)));
        out.push_back({prompt.thinking, tokenizer.encode(segments), prompt.ids});
    }
    return out;
}

nlohmann::ordered_json json_of(const Published& published) {
    nlohmann::ordered_json out;
    for (const PromptComparison& prompt : published.prompts) {
        out["prompts"].push_back({{"thinking", prompt.thinking},
                                  {"equal", prompt.equal()},
                                  {"ids", prompt.got},
                                  {"published", std::vector(prompt.want.begin(), prompt.want.end())}});
    }
    if (published.comparison) {
        out["logits"] = json_of(*published.comparison);
        out["logits"]["layers"] = published.logits->layers;
        if (const auto other = elsewhere(*published.logits))
            out["logits"]["two_references"] = json_of(*other);
    }
    for (const std::string& note : published.notes) out["not_compared"].push_back(note);
    return out;
}

void print_text(const Published& published, std::ostream& out) {
    out << "published numbers of google/diffusiongemma-26B-A4B-it (contract/goldens.md)\n";
    for (const PromptComparison& prompt : published.prompts) {
        out << fmt::format("  prompt, thinking {:<8}{}\n", prompt.thinking ? "on" : "off", text_of(prompt));
    }
    const auto line = [&](std::string_view what, const engine::LogitComparison& logits) {
        out << fmt::format(
            "  {:<25}largest difference {:.3g}; before the softcap relative rms {:.3g}, cosine {:.6f}{}\n",
            what, logits.largest, logits.relative_rms, logits.cosine,
            logits.broken > 0 ? fmt::format("; {} numbers are not finite", logits.broken) : "");
    };
    if (published.comparison) {
        line(fmt::format("logits, {} layers", published.logits->layers), *published.comparison);
        if (const auto other = elsewhere(*published.logits)) line("two of its own machines", *other);
    }
    for (const std::string& note : published.notes) out << "  " << note << "\n";
    out << "  (a fine-tuned model has other weights, and differs by them)\n\n";
}

Result<Published> compare_published(const files::Checkpoint& checkpoint, const model::Config& config,
                                    const engine::VerifyOptions& options, const Status& whole_fits) {
    Published out;
    const auto tokenizer = tokenizer_of(checkpoint);
    if (tokenizer) {
        DGEMMA_TRY(out.prompts, compare_prompts(*tokenizer));
    } else {
        out.notes.push_back("the prompt was not compared: " + tokenizer.error().message);
    }
    const int layers = options.layers == 0 ? static_cast<int>(config.text.layers.size()) : options.layers;
    out.logits = engine::published_logits(layers);
    if (out.logits == nullptr) {
        out.notes.push_back(
            fmt::format("logits after {} layers are not published: --layers 6 and all layers are", layers));
        return out;
    }
    if (layers == static_cast<int>(config.text.layers.size()) && !whole_fits) {
        out.notes.push_back("the logits were not compared (--layers 6 compares those of six layers): " +
                            whole_fits.error().message);
        return out;
    }
    options.progress(fmt::format("{} layers, for the published logits", layers));
    const auto logits = engine::compare_with_published(checkpoint, options.device, *out.logits);
    if (logits) {
        out.comparison = *logits;
    } else {
        out.notes.push_back("the logits were not compared: " + logits.error().message);
    }
    return out;
}

}  // namespace dgemma::cli
