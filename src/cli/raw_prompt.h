// A prompt that is template text already.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace dgemma::cli {

struct RawPrompt {
    std::vector<std::int32_t> ids;
    bool ends_in_thought = false;  // the reply begins with reasoning
};

// Control tokens in `text` are control tokens; <bos> goes before it unless it is there
// (contract/tokenizer.md 1.2).
RawPrompt raw_prompt(const text::Tokenizer& tokenizer, std::string_view text);

}  // namespace dgemma::cli
