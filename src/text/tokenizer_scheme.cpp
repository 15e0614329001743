#include "text/tokenizer_scheme.h"

#include <fmt/core.h>

#include "base/quote.h"
#include "text/symbol_table.h"

namespace dgemma::text {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

bool is_string(const std::optional<element>& value, std::string_view expected) {
    std::string_view text;
    return value && value->get(text) == simdjson::SUCCESS && text == expected;
}

bool is_bool(const std::optional<element>& value, bool expected) {
    bool flag = false;
    return value && value->get(flag) == simdjson::SUCCESS && flag == expected;
}

bool is_type(element step, std::string_view type) {
    std::string_view text;
    return step["type"].get(text) == simdjson::SUCCESS && text == type;
}

// The "type" of a step, for errors.
std::string type_of(element step) {
    std::string_view type;
    return step["type"].get(type) == simdjson::SUCCESS ? quote(type) : "without a type";
}

bool has_pattern(element step, std::string_view pattern) {
    std::string_view text;
    return step["pattern"]["String"].get(text) == simdjson::SUCCESS && text == pattern;
}

bool is_replace(element step, std::string_view from, std::string_view to) {
    std::string_view content;
    return is_type(step, "Replace") && has_pattern(step, from) &&
           step["content"].get(content) == simdjson::SUCCESS && content == to;
}

// Splitting at spaces splits nothing, as the normalizer leaves none; with "invert" it would act on all the
// rest.
bool is_split_at_spaces(element step) {
    const auto invert = step["invert"];
    bool inverted = false;
    if (invert.error() == simdjson::SUCCESS && invert.get(inverted) != simdjson::SUCCESS) return false;
    return is_type(step, "Split") && has_pattern(step, " ") && !inverted;
}

// Why the normalizer is not ours; empty if it is.
std::string normalizer_fault(const std::optional<element>& normalizer) {
    if (!normalizer) return "it has no normalizer, where Gemma's replaces a space by U+2581";
    if (is_replace(*normalizer, " ", kSpaceMarkUtf8)) return {};
    return fmt::format("its normalizer {} is not the replacement of a space by U+2581", type_of(*normalizer));
}

std::string pre_tokenizer_fault(const std::optional<element>& pre_tokenizer) {
    if (!pre_tokenizer || is_split_at_spaces(*pre_tokenizer)) return {};
    return fmt::format("its pre-tokenizer {} is not the split at spaces", type_of(*pre_tokenizer));
}

std::string decoder_fault(const std::optional<element>& decoder) {
    constexpr std::string_view kOurs =
        "Gemma's sequence of Replace (U+2581 by a space), ByteFallback and Fuse";
    if (!decoder) return fmt::format("it has no decoder, where {} is expected", kOurs);
    array steps;
    if (!is_type(*decoder, "Sequence") || (*decoder)["decoders"].get(steps) != simdjson::SUCCESS) {
        return fmt::format("its decoder {} is not {}", type_of(*decoder), kOurs);
    }
    std::size_t position = 0;
    for (const element step : steps) {
        const bool ours = position == 0   ? is_replace(step, kSpaceMarkUtf8, " ")
                          : position == 1 ? is_type(step, "ByteFallback")
                                          : position == 2 && is_type(step, "Fuse");
        ++position;
        if (!ours)
            return fmt::format("step {} of its decoder, {}, is not that of {}", position, type_of(step),
                               kOurs);
    }
    return position == 3 ? std::string() : fmt::format("its decoder has {} steps, not {}", position, kOurs);
}

std::string model_fault(object model) {
    const auto type = member(model, "type");
    std::string_view type_name;
    if (!type || type->get(type_name) != simdjson::SUCCESS)
        return "its model has no type, where \"BPE\" is expected";
    if (type_name != "BPE") return fmt::format("its model type is {}, not \"BPE\"", quote(type_name));
    if (!is_bool(member(model, "byte_fallback"), true)) return "its model does not set byte_fallback";
    const auto dropout = member(model, "dropout");
    double rate = 0;
    if (dropout && (dropout->get(rate) != simdjson::SUCCESS || rate != 0)) {
        return "its model sets dropout, which makes encoding random";
    }
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        const auto value = member(model, key);
        if (value && !is_string(value, "")) return fmt::format("its model sets {}", key);
    }
    const auto ignore_merges = member(model, "ignore_merges");
    if (ignore_merges && !is_bool(ignore_merges, false)) return "its model sets ignore_merges";
    return {};
}

}  // namespace

std::optional<element> member(object from, std::string_view key) {
    element value;
    if (from.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
}

Error unsupported_tokenizer(std::string_view name, std::string_view what) {
    return {ErrorKind::unsupported,
            fmt::format(
                "The tokenizer {} is not one of DiffusionGemma: {}; use the checkpoint's own tokenizer.json.",
                quote(name), what)};
}

Error broken_tokenizer(std::string_view name, std::string_view what) {
    return {ErrorKind::invalid,
            fmt::format("The tokenizer {} is broken: {}; download the checkpoint's tokenizer.json again.",
                        quote(name), what)};
}

Status check_scheme(object root, object model, std::string_view name) {
    for (const std::string& fault :
         {model_fault(model), normalizer_fault(member(root, "normalizer")),
          pre_tokenizer_fault(member(root, "pre_tokenizer")), decoder_fault(member(root, "decoder"))}) {
        if (!fault.empty()) return unsupported_tokenizer(name, fault);
    }
    return {};
}

}  // namespace dgemma::text
