#include "cli/raw_prompt.h"

#include "text/chat_template.h"

namespace dgemma::cli {

RawPrompt raw_prompt(const text::Tokenizer& tokenizer, std::string_view text) {
    RawPrompt out;
    out.ids = tokenizer.encode(text, text::Specials::parse);
    const std::int32_t bos = tokenizer.id_of("<bos>");
    if (bos >= 0 && (out.ids.empty() || out.ids.front() != bos)) out.ids.insert(out.ids.begin(), bos);
    const text::Segment segment{.text = std::string(text), .data = false};
    out.ends_in_thought = text::ends_in_thought(std::span(&segment, 1));
    return out;
}

}  // namespace dgemma::cli
