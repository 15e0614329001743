// From a conversation, or from template text, to what the model reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dgemma::reply {

struct Prompt {
    std::vector<std::int32_t> ids;
    bool ends_in_thought = false;  // the reply begins with reasoning
};

// A conversation in safe mode: what came with it makes no control tokens (contract/tokenizer.md 4). Errors:
// those of the template; unsupported for images, audio and video; context_length for a rendering of more than
// most_bytes, which is not tokenized.
Result<Prompt> chat_prompt(const text::Tokenizer& tokenizer, text::TemplateRevision revision,
                           const text::ChatInput& input, std::size_t most_bytes = SIZE_MAX);

// Template text: control tokens in it are control tokens; <bos> goes before it unless it is there
// (contract/tokenizer.md 1.2).
Prompt raw_prompt(const text::Tokenizer& tokenizer, std::string_view text);

// A text to go on with, without a template and without control tokens in it, after <bos>.
Prompt plain_prompt(const text::Tokenizer& tokenizer, std::string_view text);

}  // namespace dgemma::reply
