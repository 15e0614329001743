#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "text/python_text.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

constexpr std::string_view thought_label = "thought\n";

// Bytes at the end of `bytes` that may be the beginning of a character.
std::size_t open_character(std::string_view bytes) {
    for (std::size_t length = 1; length <= std::min<std::size_t>(3, bytes.size()); ++length) {
        const auto byte = static_cast<unsigned char>(bytes[bytes.size() - length]);
        if (byte < 0x80) return 0;
        if (byte < 0xC0) continue;  // the lead is further to the front
        const std::size_t whole = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        return length < whole ? length : 0;
    }
    return 0;
}

// Control tokens that mean nothing in a reply.
bool is_ignored(Control control) {
    switch (control) {
        case Control::eos:
        case Control::call_open:
        case Control::call_close:
        case Control::response_open:
        case Control::quote:
        case Control::channel_open:
        case Control::channel_close:
        case Control::turn_open:
        case Control::turn_close:
            return false;
        default:
            return true;
    }
}

void emit(ParserEvent::Kind kind, std::string text, std::vector<ParserEvent>& events) {
    if (text.empty()) return;
    ParserEvent event;
    event.kind = kind;
    event.text = std::move(text);
    events.push_back(std::move(event));
}

}  // namespace

void ParsedReply::add(const ParserEvent& event) {
    switch (event.kind) {
        case ParserEvent::Kind::content:
            if (!content) content.emplace();
            *content += event.text;
            if (!event.broken_call.empty()) broken_calls.push_back(event.broken_call);
            break;
        case ParserEvent::Kind::reasoning:
            reasoning = reasoning.value_or("") + event.text;
            break;
        case ParserEvent::Kind::tool_call:
            tool_calls.push_back(event.call);
            break;
        case ParserEvent::Kind::stop:
            stop = event.stop;
            break;
    }
}

bool shows_nothing(const ParsedReply& reply) {
    return reply.tool_calls.empty() && python_strip(reply.content.value_or("")).empty();
}

std::string_view finish_reason(const ParsedReply& reply, bool at_limit) {
    if (!reply.tool_calls.empty()) return "tool_calls";
    return at_limit ? "length" : "stop";
}

OutputParser::OutputParser(ParserOptions options)
    : state_(options.start == ParserOptions::Start::thought ? State::channel : State::content),
      after_role_line_(state_),
      tool_aware_stop_(options.tool_aware_stop) {}

void OutputParser::text(std::string_view bytes, std::vector<ParserEvent>& events) {
    if (stopped() || bytes.empty()) return;
    at_start_ = false;
    quotes_.feed_text();
    character_ += bytes;
    const std::size_t open = open_character(character_);
    std::string tail = character_.substr(character_.size() - open);
    character_.resize(character_.size() - open);
    take(sanitize_utf8(std::exchange(character_, std::move(tail))), events);
}

void OutputParser::flush_character(std::vector<ParserEvent>& events) {
    if (!character_.empty()) take(sanitize_utf8(std::exchange(character_, {})), events);
}

void OutputParser::take(std::string_view characters, std::vector<ParserEvent>& events) {
    switch (state_) {
        case State::role_line: {
            const std::size_t end = characters.find('\n');
            if (end == std::string_view::npos) return;
            state_ = after_role_line_;
            return take(characters.substr(end + 1), events);
        }
        case State::content:
            return emit(ParserEvent::Kind::content, std::string(characters), events);
        case State::channel:
            return take_channel(characters, events);
        case State::call:
            call_ += characters;
            return;
        case State::stopped:
            return;
    }
}

void OutputParser::take_channel(std::string_view characters, std::vector<ParserEvent>& events) {
    if (!in_label_) return reason(characters, events);
    label_ += characters;
    if (label_.size() < thought_label.size() && thought_label.starts_with(label_)) return;
    in_label_ = false;
    const std::string start = std::exchange(label_, {});
    reason(std::string_view(start).substr(start.starts_with(thought_label) ? thought_label.size() : 0),
           events);
}

void OutputParser::reason(std::string_view characters, std::vector<ParserEvent>& events) {
    if (characters.empty()) return;
    std::string text = holds_line_feed_ ? "\n" : "";
    text += characters;
    holds_line_feed_ = text.ends_with('\n');
    if (holds_line_feed_) text.pop_back();
    if (text.empty()) return;
    if (!channel_has_text_ && has_reasoning_) text.insert(0, "\n");
    channel_has_text_ = has_reasoning_ = true;
    emit(ParserEvent::Kind::reasoning, std::move(text), events);
}

void OutputParser::open_channel() {
    state_ = State::channel;
    in_label_ = true;
    label_.clear();
    holds_line_feed_ = channel_has_text_ = false;
}

// Ends the open channel or call, if there is one. `closer`: what ends it, if not the end of the output.
void OutputParser::close_open(std::optional<Control> closer, std::vector<ParserEvent>& events) {
    if (state_ == State::channel) {
        if (in_label_ && label_ + "\n" != thought_label) reason(std::exchange(label_, {}), events);
        in_label_ = false;
        // The line feed that is held back belongs to the marker. A next channel starts afresh.
        holds_line_feed_ = channel_has_text_ = false;
    } else if (state_ == State::call) {
        close_call(closer, events);
    }
    state_ = State::content;
}

void OutputParser::close_call(std::optional<Control> closer, std::vector<ParserEvent>& events) {
    Result<ToolCall> call = parse_tool_call(call_);
    const bool may_count = closer == Control::call_close || closer == Control::response_open;
    if (call && may_count) {
        ParserEvent event;
        event.kind = ParserEvent::Kind::tool_call;
        event.call = std::move(call).value();
        events.push_back(std::move(event));
    } else {
        ParserEvent event;
        event.text = text_of(Control::call_open);
        for (const char c : call_) {
            if (c == quote_byte)
                event.text += text_of(Control::quote);
            else
                event.text += c;
        }
        if (closer == Control::call_close) event.text += text_of(Control::call_close);
        event.broken_call = may_count && !call ? call.error().message : "the call has no closing marker";
        events.push_back(std::move(event));
    }
    call_.clear();
}

void OutputParser::control(Control control, std::vector<ParserEvent>& events) {
    if (stopped()) return;
    flush_character(events);
    const bool literal = quotes_.literal(control) && (tool_aware_stop_ || !ends_reply(control));
    quotes_.feed(control);
    if (literal) {
        call_ += text_of(control);
        return;
    }
    if (is_ignored(control)) return;
    // A role line ends with its line; a control token within it ends it as well.
    if (state_ == State::role_line) state_ = after_role_line_;

    const bool was_at_start = std::exchange(at_start_, false);
    switch (control) {
        case Control::turn_open:
            if (was_at_start) {
                state_ = State::role_line;
                return;
            }
            [[fallthrough]];
        case Control::eos:
        case Control::turn_close:
        case Control::response_open: {
            close_open(control, events);
            state_ = State::stopped;
            ParserEvent event;
            event.kind = ParserEvent::Kind::stop;
            event.stop = control;
            events.push_back(std::move(event));
            return;
        }
        case Control::channel_open:
            close_open(control, events);
            open_channel();
            break;
        case Control::channel_close:
            if (state_ == State::channel) close_open(control, events);
            break;
        case Control::call_open:
            close_open(control, events);
            state_ = State::call;
            break;
        case Control::call_close:
            if (state_ == State::call) close_open(control, events);
            break;
        case Control::quote:
            if (state_ == State::call) call_ += quote_byte;
            break;
        default:
            return;  // ignored wherever it is not quoted
    }
    at_start_ = false;
}

void OutputParser::finish(std::vector<ParserEvent>& events) {
    if (stopped()) return;
    flush_character(events);
    close_open(std::nullopt, events);
}

void IdOutputParser::push(std::int32_t id, std::string_view text, std::vector<ParserEvent>& events) {
    parser_.text(text, events);
    if (const std::optional<Control> control = ids_.control_of(id)) parser_.control(*control, events);
}

void IdOutputParser::finish(std::string_view text, std::vector<ParserEvent>& events) {
    parser_.text(text, events);
    parser_.finish(events);
}

void TextOutputParser::push(std::string_view bytes, std::vector<ParserEvent>& events) {
    if (stopped()) return;
    held_ += bytes;
    const std::string_view text = held_;
    std::size_t done = 0;
    for (std::size_t pos = text.find('<'); pos != std::string_view::npos && !stopped();
         pos = text.find('<', pos)) {
        const std::string_view rest = text.substr(pos);
        const auto* const marker = std::find_if(
            control_texts.begin(), control_texts.end(),
            [&](std::string_view control) { return rest.starts_with(control) || control.starts_with(rest); });
        if (marker == control_texts.end()) {
            ++pos;
            continue;
        }
        parser_.text(text.substr(done, pos - done), events);
        done = pos;
        if (rest.size() < marker->size()) {  // more bytes decide
            held_.erase(0, done);
            return;
        }
        pos += marker->size();
        done = pos;
        parser_.control(static_cast<Control>(marker - control_texts.begin()), events);
    }
    parser_.text(text.substr(done), events);
    held_.clear();
}

void TextOutputParser::finish(std::vector<ParserEvent>& events) {
    parser_.text(std::exchange(held_, {}), events);
    parser_.finish(events);
}

ParsedReply parse_output(std::string_view text, ParserOptions options) {
    TextOutputParser parser(options);
    std::vector<ParserEvent> events;
    parser.push(text, events);
    parser.finish(events);
    ParsedReply reply;
    for (const ParserEvent& event : events) reply.add(event);
    return reply;
}

}  // namespace dgemma::text
