#include "reply/reply_text.h"

#include <utility>

namespace dgemma::reply {

using text::ParserEvent;

namespace {

ParserEvent content(std::string text) {
    ParserEvent event;
    event.kind = ParserEvent::Kind::content;
    event.text = std::move(text);
    return event;
}

}  // namespace

text::MarkerIds markers_of(const text::Tokenizer& tokenizer) {
    return text::MarkerIds::from([&](std::string_view token) { return tokenizer.id_of(token); });
}

ReplyText::ReplyText(const text::Tokenizer& tokenizer, text::ParserOptions options,
                     std::vector<std::string> stops)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer, true),
      parser_(markers_of(tokenizer), options),
      stops_(std::move(stops)) {}

std::vector<ParserEvent> ReplyText::feed(std::span<const std::int32_t> ids) {
    std::vector<ParserEvent> events;
    for (const std::int32_t id : ids) {
        // A control token has no text of its own, but it ends a run of byte tokens before it.
        parser_.push(id, parser_.is_control(id) ? detokenizer_.flush() : detokenizer_.push(id), events);
    }
    return pass(std::move(events));
}

std::vector<ParserEvent> ReplyText::finish(std::optional<std::int32_t> stop_id) {
    std::vector<ParserEvent> events;
    std::string rest = detokenizer_.flush();
    if (stop_id && parser_.is_control(*stop_id)) parser_.push(*stop_id, std::exchange(rest, {}), events);
    parser_.finish(rest, events);
    std::vector<ParserEvent> out = pass(std::move(events));
    if (std::string held = stops_.finish(); !held.empty()) {
        out.push_back(content(std::move(held)));
        whole_.add(out.back());
    }
    return out;
}

std::vector<ParserEvent> ReplyText::pass(std::vector<ParserEvent> events) {
    std::vector<ParserEvent> out;
    const auto put = [&](ParserEvent event) {
        whole_.add(event);
        // Ids come one by one; a reader is told of them together.
        const bool goes_on =
            !out.empty() && out.back().kind == event.kind && out.back().broken_call.empty() &&
            event.broken_call.empty() &&
            (event.kind == ParserEvent::Kind::content || event.kind == ParserEvent::Kind::reasoning);
        if (goes_on) {
            out.back().text += event.text;
        } else {
            out.push_back(std::move(event));
        }
    };
    for (ParserEvent& event : events) {
        if (stops_.stopped()) break;
        if (event.kind == ParserEvent::Kind::content) {
            event.text = stops_.feed(event.text);
            if (!event.text.empty()) put(std::move(event));
            continue;
        }
        // No stop string reaches across a thought or a call, so what is held back before one can go.
        if (std::string held = stops_.finish(); !held.empty()) put(content(std::move(held)));
        put(std::move(event));
    }
    return out;
}

}  // namespace dgemma::reply
