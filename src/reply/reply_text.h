// From committed ids to what a reader gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reply/stop_strings.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace dgemma::reply {

text::MarkerIds markers_of(const text::Tokenizer& tokenizer);

// One reply: detokenizer, output parser and stop strings in a row. All of them keep state across blocks,
// because characters, thoughts, tool calls and stop strings may straddle two of them. Cheap to copy.
class ReplyText {
  public:
    // stops: texts that end the answer (content, not reasoning or tool calls).
    ReplyText(const text::Tokenizer& tokenizer, text::ParserOptions options, std::vector<std::string> stops);

    // What becomes final with these ids, in order. A part of the answer that may be the beginning of a stop
    // string is held back.
    std::vector<text::ParserEvent> feed(std::span<const std::int32_t> ids);

    // The end of the reply, and what was held back. stop_id: the id that ended it, if one did.
    std::vector<text::ParserEvent> finish(std::optional<std::int32_t> stop_id);

    // Whether a stop string, or a control token that nothing can follow, was met: more ids would show
    // nothing.
    [[nodiscard]] bool complete() const { return stops_.stopped() || parser_.stopped(); }

    // The stop string that was met, if one was.
    [[nodiscard]] const std::optional<std::string>& stop_string() const { return stops_.met(); }

    // Everything so far.
    [[nodiscard]] const text::ParsedReply& whole() const { return whole_; }

  private:
    // Takes the parser's events over, content by way of the stop strings.
    std::vector<text::ParserEvent> pass(std::vector<text::ParserEvent> events);

    text::Tokenizer tokenizer_;
    text::Detokenizer detokenizer_;
    text::IdOutputParser parser_;
    StopStrings stops_;
    text::ParsedReply whole_;
};

}  // namespace dgemma::reply
