// Ids of a reply to what they say: detokenizer and output parser as one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace dgemma::text {

MarkerIds marker_ids(const Tokenizer& tokenizer);

// One per reply: its state outlives a canvas.
class ReplyReader {
  public:
    ReplyReader(const Tokenizer& tokenizer, ParserOptions options)
        : detokenizer_(tokenizer, /*skip_special=*/true), parser_(marker_ids(tokenizer), options) {}

    // Adds what becomes certain with `ids` to `events`. Ids behind a stop are not looked at.
    void push(std::span<const std::int32_t> ids, std::vector<ParserEvent>& events);

    // The end of the output: it was cut off, unless a stop was met.
    void finish(std::vector<ParserEvent>& events);

    [[nodiscard]] bool stopped() const { return parser_.stopped(); }

  private:
    Detokenizer detokenizer_;
    IdOutputParser parser_;
};

// A whole reply at once. `ids` without the stop id, if the engine has taken it off; then pass it as
// `stop_id`.
ParsedReply read_reply(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                       std::optional<std::int32_t> stop_id, ParserOptions options);

}  // namespace dgemma::text
