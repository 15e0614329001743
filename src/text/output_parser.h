// Model output to reasoning, content and tool calls, piece by piece (contract/tokenizer.md 5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/control_tokens.h"
#include "text/tool_call.h"
#include "text/tool_quotes.h"

namespace dgemma::text {

struct ParserOptions {
    // Where the prompt left the reply: within a thought if it ended in an open one (ends_in_thought()).
    enum class Start : std::uint8_t { content, thought };
    Start start = Start::content;

    // Within a quoted argument a stop token is content (the guard of contract/generation.md 13). Off, it
    // stops anywhere. Other control tokens are content there in any case.
    bool tool_aware_stop = true;
};

struct ParserEvent {
    enum class Kind : std::uint8_t {
        content,    // `text` goes on with the answer
        reasoning,  // `text` goes on with the reasoning
        tool_call,  // `call` is complete
        stop,       // `stop` ended the reply; nothing follows
    };
    Kind kind = Kind::content;
    std::string text;         // whole UTF-8, never empty, never taken back
    std::string broken_call;  // of content that is the raw text of a broken tool call: what was wrong with it
    ToolCall call;
    Control stop = Control::eos;
};

// A whole reply: all events put together.
struct ParsedReply {
    std::optional<std::string> reasoning;  // nothing rather than empty
    std::optional<std::string> content;
    std::vector<ToolCall> tool_calls;
    std::optional<Control> stop;            // nothing: the reply was cut off
    std::vector<std::string> broken_calls;  // what was wrong with each

    void add(const ParserEvent& event);
};

// Whether a reader would see nothing: no tool call, and no content but white space. Reasoning alone does not
// show.
bool shows_nothing(const ParsedReply& reply);

// "tool_calls" if there is any, else "length" if the reply ran into the token limit, else "stop".
std::string_view finish_reason(const ParsedReply& reply, bool at_limit);

// The state machine under both front ends below. What comes out in all does not depend on how text is cut
// into pieces, not even within a character. Bytes that are not UTF-8 become U+FFFD.
//
// Where the contract leaves a choice: a channel without text adds nothing to the reasoning, and neither does
// one that ends right after its label. A call that is interrupted (by the end, a stop, a channel, another
// call) or does not parse is broken; its raw text, markers included, is content. But if `<|tool_response>`
// ends the reply right after the closing brace of a call, only the closing marker is missing, and the call
// counts.
class OutputParser {
  public:
    explicit OutputParser(ParserOptions options = {});

    // Each adds what becomes certain with it to `events`.
    void text(std::string_view bytes, std::vector<ParserEvent>& events);
    void control(Control control, std::vector<ParserEvent>& events);
    void finish(std::vector<ParserEvent>& events);  // the end of the output; nothing may follow

    // Whether a stop was met. What follows is not looked at.
    [[nodiscard]] bool stopped() const { return state_ == State::stopped; }

    // Whether a stop token that comes now is part of a quoted argument.
    [[nodiscard]] bool inside_open_quote() const {
        return tool_aware_stop_ && quotes_.literal(Control::turn_close);
    }

  private:
    enum class State : std::uint8_t { role_line, content, channel, call, stopped };

    void take(std::string_view characters, std::vector<ParserEvent>& events);
    void take_channel(std::string_view characters, std::vector<ParserEvent>& events);
    void reason(std::string_view characters, std::vector<ParserEvent>& events);
    void flush_character(std::vector<ParserEvent>& events);
    void open_channel();
    void close_open(std::optional<Control> closer, std::vector<ParserEvent>& events);
    void close_call(std::optional<Control> closer, std::vector<ParserEvent>& events);

    State state_;
    State after_role_line_;
    bool tool_aware_stop_;
    bool at_start_ = true;   // nothing but ignored tokens so far
    std::string character_;  // bytes of a character that has not ended yet
    ToolQuotes quotes_;
    std::string call_;  // of the open call: text, with quote bytes

    // Of the open channel, and whether an earlier one had text.
    bool in_label_ = false;
    std::string label_;             // what may be the label line
    bool holds_line_feed_ = false;  // the last one does not belong to the text if nothing follows
    bool channel_has_text_ = false;
    bool has_reasoning_ = false;
};

// By ids, with the text that the detokenizer makes of them.
class IdOutputParser {
  public:
    IdOutputParser(MarkerIds ids, ParserOptions options) : ids_(ids), parser_(options) {}

    // Whether `id` is a control token. Its own spelling is no text: for it, pass on to push() what the
    // detokenizer still held back.
    [[nodiscard]] bool is_control(std::int32_t id) const { return ids_.control_of(id).has_value(); }

    // `text`: what became certain with `id`. It may lag behind the ids, but not across a control token.
    void push(std::int32_t id, std::string_view text, std::vector<ParserEvent>& events);

    // `text`: what the detokenizer held back.
    void finish(std::string_view text, std::vector<ParserEvent>& events);

    [[nodiscard]] bool stopped() const { return parser_.stopped(); }
    [[nodiscard]] bool inside_open_quote() const { return parser_.inside_open_quote(); }

  private:
    MarkerIds ids_;
    OutputParser parser_;
};

// By the spelling of the control tokens in plain text, wherever it occurs.
class TextOutputParser {
  public:
    explicit TextOutputParser(ParserOptions options) : parser_(options) {}

    void push(std::string_view bytes, std::vector<ParserEvent>& events);
    void finish(std::vector<ParserEvent>& events);

    [[nodiscard]] bool stopped() const { return parser_.stopped(); }
    [[nodiscard]] bool inside_open_quote() const { return parser_.inside_open_quote(); }

  private:
    OutputParser parser_;
    std::string held_;  // what may be the beginning of a control token
};

// A whole output at once.
ParsedReply parse_output(std::string_view text, ParserOptions options);

}  // namespace dgemma::text
