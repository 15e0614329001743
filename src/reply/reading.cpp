#include "reply/reading.h"

#include <span>
#include <string>

#include "reply/reply_text.h"
#include "text/tool_quotes.h"

namespace dgemma::reply {

text::ParserOptions parser_options(const engine::Request& request, bool starts_in_thought) {
    return {.start =
                starts_in_thought ? text::ParserOptions::Start::thought : text::ParserOptions::Start::content,
            .tool_aware_stop = !request.exact && request.diffusion.guards.tool_aware_stop};
}

void answer_guards(engine::Request& request, const text::Tokenizer& tokenizer, bool starts_in_thought) {
    const text::ParserOptions options = parser_options(request, starts_in_thought);
    request.shows_nothing = [tokenizer, options](std::span<const std::int32_t> reply) {
        ReplyText text(tokenizer, options, {});
        text.feed(reply);
        text.finish(std::nullopt);
        return text::shows_nothing(text.whole());
    };
    request.inside_quote = [markers = markers_of(tokenizer)](std::span<const std::int32_t> reply) {
        text::ToolQuoteTracker tracker(markers);
        for (const std::int32_t id : reply) tracker.feed(id);
        return tracker.inside_open_quote();
    };
    request.is_space = [tokenizer](std::int32_t id) {
        const std::string text = tokenizer.decode(std::span(&id, 1), false);
        return !text.empty() && text.find_first_not_of(" \t\n\r\v\f") == std::string::npos;
    };
}

}  // namespace dgemma::reply
