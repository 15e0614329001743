// Which control tokens are mere content because they stand within a quoted argument of a tool call.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "text/control_tokens.h"

namespace dgemma::text {

// Follows one reply, token by token. Quoted text is taken raw (contract/tokenizer.md 5), so a tool argument
// that explains `<turn|>` does not end the turn.
//
// A model that forgets the closing quote would thereby never stop. So a call's closing marker within an open
// quote, when the next token ends the reply or opens another call, is what it looks like: the call was meant
// to be over.
class ToolQuotes {
  public:
    // An ordinary token, or text.
    void feed_text() { after_close_ = false; }

    void feed(Control control) {
        if (control == Control::pad) return;
        if (literal(control)) {
            after_close_ = control == Control::call_close;
            return;
        }
        after_close_ = false;
        switch (control) {
            case Control::call_open:
                in_call_ = true;
                in_quote_ = false;
                break;
            case Control::quote:
                in_quote_ = in_call_ && !in_quote_;
                break;
            case Control::call_close:
            case Control::channel_open:
                in_call_ = in_quote_ = false;
                break;
            default:
                if (ends_reply(control)) in_call_ = in_quote_ = false;
        }
    }

    // Whether `control`, if it came now, would be part of a quoted argument.
    [[nodiscard]] bool literal(Control control) const {
        if (!in_quote_ || control == Control::quote || control == Control::pad) return false;
        return !(after_close_ && (ends_reply(control) || control == Control::call_open));
    }

  private:
    bool in_call_ = false;
    bool in_quote_ = false;
    bool after_close_ = false;  // the last token was a call's closing marker within an open quote
};

// The same by ids, for whoever decides about stop ids without reading text (the guard "tool-aware stop",
// contract/generation.md 13): ask before feeding a stop id, and feed every id that does not stop.
class ToolQuoteTracker {
  public:
    explicit ToolQuoteTracker(MarkerIds ids) : ids_(ids) {}

    void feed(std::int32_t id) {
        if (const std::optional<Control> control = ids_.control_of(id))
            quotes_.feed(*control);
        else
            quotes_.feed_text();
    }

    // Whether a stop id that comes now is content.
    [[nodiscard]] bool inside_open_quote() const { return quotes_.literal(Control::turn_close); }

  private:
    MarkerIds ids_;
    ToolQuotes quotes_;
};

}  // namespace dgemma::text
