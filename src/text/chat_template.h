// Conversations to prompts: the three published revisions of the chat template, rendered natively
// (contract/tokenizer.md 2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/segment.h"
#include "text/value.h"

namespace dgemma::text {

enum class TemplateRevision : std::uint8_t {
    canonical,        // of 2026-07-09; for checkpoints without a template too
    legacy_2f1b4d75,  // named by the start of their SHA-256
    legacy_36e3a42e,
};

std::string_view name_of(TemplateRevision revision);  // "canonical", "2f1b4d75", "36e3a42e"

// The revision whose file has this content, byte for byte. Errors: unsupported, with the hash and the remedy.
Result<TemplateRevision> identify_template(std::string_view file_bytes);

// What a template is given. An absent switch was not passed, which counts as off.
struct ChatInput {
    Value messages;  // a list of messages; tool arguments as objects
    Value tools;     // a list of declarations, or null
    bool add_generation_prompt = true;
    std::optional<bool> enable_thinking;
    std::optional<bool> preserve_thinking;
};

// The prompt, with `<bos>`, as segments: what the template wrote, and as data everything that came with the
// input (content, roles, names, descriptions, keys, arguments, results), so that encoding the segments can
// never make a control token of a client's text (contract/tokenizer.md 4). Media parts become placeholders,
// `<|image|>` and so on, which are the template's. Neighbouring segments differ in kind. Errors: invalid,
// where the template itself fails; names the message or tool.
Result<std::vector<Segment>> render_chat(TemplateRevision revision, const ChatInput& input);

// The texts of all segments: what the reference renderer gives.
std::string join(std::span<const Segment> segments);

// Whether a rendered prompt ends within an open thought, so that the reply begins with reasoning.
bool ends_in_thought(std::span<const Segment> prompt);

}  // namespace dgemma::text
