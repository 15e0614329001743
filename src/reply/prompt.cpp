#include "reply/prompt.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace dgemma::reply {

namespace {

void put_bos_first(const text::Tokenizer& tokenizer, std::vector<std::int32_t>& ids) {
    const std::int32_t bos = tokenizer.id_of("<bos>");
    if (bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
}

}  // namespace

Result<Prompt> chat_prompt(const text::Tokenizer& tokenizer, text::TemplateRevision revision,
                           const text::ChatInput& input, std::size_t most_bytes) {
    DGEMMA_TRY(const std::vector<text::Segment> segments, text::render_chat(revision, input));
    for (const text::Segment& segment : segments) {
        for (const std::string_view media : {"<|image|>", "<|audio|>", "<|video|>"}) {
            if (!segment.data && segment.text.find(media) != std::string::npos) {
                return Error{ErrorKind::unsupported,
                             "The messages hold an image, audio or video, and only text is read so far; "
                             "leave it out."};
            }
        }
    }
    std::size_t bytes = 0;
    for (const text::Segment& segment : segments) bytes += segment.text.size();
    if (bytes > most_bytes) {
        return Error{
            ErrorKind::context_length,
            fmt::format("The prompt has {} bytes, and whatever they say, not more than {} fit the context; "
                        "shorten it.",
                        bytes, most_bytes)};
    }
    return Prompt{tokenizer.encode(segments), text::ends_in_thought(segments)};
}

Prompt raw_prompt(const text::Tokenizer& tokenizer, std::string_view text) {
    Prompt out;
    out.ids = tokenizer.encode(text, text::Specials::parse);
    put_bos_first(tokenizer, out.ids);
    const text::Segment segment{.text = std::string(text), .data = false};
    out.ends_in_thought = text::ends_in_thought(std::span(&segment, 1));
    return out;
}

Prompt plain_prompt(const text::Tokenizer& tokenizer, std::string_view text) {
    Prompt out;
    out.ids = tokenizer.encode(text, text::Specials::as_text);
    put_bos_first(tokenizer, out.ids);
    return out;
}

}  // namespace dgemma::reply
