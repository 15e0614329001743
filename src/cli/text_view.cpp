#include "cli/text_view.h"

#include <fmt/format.h>

#include "text/value.h"

namespace dgemma::cli {

TextView::TextView(Console& console, std::function<TerminalSize()> size, std::chrono::milliseconds frame_time)
    : console_(console), frame_time_(frame_time) {
    if (console.err_is_terminal) canvas_.emplace(console.err, std::move(size), console.colour);
}

bool TextView::due() {
    const auto now = std::chrono::steady_clock::now();
    if (last_frame_ && now - *last_frame_ < frame_time_) return false;
    last_frame_ = now;
    return true;
}

void TextView::on_prefill(const engine::PrefillEvent& event) {
    if (canvas_ && due())
        draw({}, fmt::format("reading the prompt, {} of {} tokens", event.done, event.total));
}

void TextView::on_step(const engine::StepEvent& event, const reply::ReplyText& so_far) {
    if (!canvas_ || !due()) return;
    reply::ReplyText draft = so_far;
    std::vector<Span> spans;
    const auto add = [&](Tone tone, const std::vector<text::ParserEvent>& pieces) {
        for (const text::ParserEvent& piece : pieces) {
            if (piece.kind == text::ParserEvent::Kind::tool_call) {
                spans.push_back({tone, piece.call.name + text::to_json(piece.call.arguments)});
            } else {
                spans.push_back({tone, piece.text});
            }
        }
    };
    // Runs of positions that the sampler kept, and of those that become noise again.
    for (std::size_t begin = 0; begin < event.argmax.size();) {
        std::size_t end = begin + 1;
        while (end < event.argmax.size() && event.accept[end] == event.accept[begin]) ++end;
        add(event.accept[begin] != 0 ? Tone::plain : Tone::dim,
            draft.feed(event.argmax.subspan(begin, end - begin)));
        begin = end;
    }
    add(Tone::dim, draft.finish(std::nullopt));
    draw(spans, fmt::format("block {}  step {} of {}  entropy {:.3f}  temperature {:.2f}  kept {} of {}{}",
                            event.block + 1, event.step + 1, event.max_steps, event.mean_entropy,
                            event.temperature, event.accepted, event.argmax.size(),
                            event.attempt > 0 ? fmt::format("  attempt {}", event.attempt + 1) : ""));
}

void TextView::draw(const std::vector<Span>& draft, const std::string& status) {
    std::vector<Span> spans;
    if (!open_thought_.empty()) spans.push_back({Tone::dim, open_thought_});
    if (!open_answer_.empty()) spans.push_back({Tone::plain, open_answer_});
    spans.insert(spans.end(), draft.begin(), draft.end());
    canvas_->draw(spans, status);
}

void TextView::on_text(const text::ParserEvent& event) {
    switch (event.kind) {
        case text::ParserEvent::Kind::content:
            end_thought();
            return answer(event.text);
        case text::ParserEvent::Kind::reasoning:
            return think(event.text);
        case text::ParserEvent::Kind::tool_call: {
            end_thought();
            const bool in_line = answer_in_line_ || !open_answer_.empty();
            return answer(fmt::format("{}{{\"name\":{},\"arguments\":{}}}\n", in_line ? "\n" : "",
                                      text::json_quoted(event.call.name),
                                      text::to_json(event.call.arguments)));
        }
        case text::ParserEvent::Kind::stop:
            return;
    }
}

void TextView::answer(const std::string& text) {
    if (!canvas_ || !console_.out_is_terminal) return write_answer(text);
    open_answer_ += text;
    const std::size_t lines = open_answer_.rfind('\n');
    if (lines == std::string::npos) return;
    canvas_->clear();
    write_answer(open_answer_.substr(0, lines + 1));
    open_answer_.erase(0, lines + 1);
}

void TextView::write_answer(std::string_view text) {
    if (text.empty()) return;
    // A terminal obeys what it is sent; a file or a program gets every byte as it is.
    console_.out << (console_.out_is_terminal ? without_controls(text) : std::string(text)) << std::flush;
    answer_in_line_ = text.back() != '\n';
}

void TextView::think(const std::string& text) {
    if (!canvas_) return write_thought(text);
    open_thought_ += text;
    const std::size_t lines = open_thought_.rfind('\n');
    if (lines == std::string::npos) return;
    canvas_->clear();
    write_thought(open_thought_.substr(0, lines + 1));
    open_thought_.erase(0, lines + 1);
}

void TextView::write_thought(std::string_view text) {
    if (text.empty()) return;
    if (!console_.err_is_terminal) {
        console_.err << text << std::flush;
    } else if (console_.colour) {
        console_.err << "\x1b[2m" << without_controls(text) << "\x1b[0m" << std::flush;
    } else {
        console_.err << without_controls(text) << std::flush;
    }
    thought_in_line_ = text.back() != '\n';
}

void TextView::end_thought() {
    if (!open_thought_.empty()) {
        canvas_->clear();
        write_thought(std::exchange(open_thought_, {}));
    }
    if (thought_in_line_) console_.err << "\n" << std::flush;
    thought_in_line_ = false;
}

void TextView::close() {
    if (canvas_) canvas_->clear();
    end_thought();
    write_answer(std::exchange(open_answer_, {}));
    if (answer_in_line_) console_.out << "\n" << std::flush;
    answer_in_line_ = false;
}

void TextView::on_end(const engine::EndEvent& /*end*/, const text::ParsedReply& /*whole*/) { close(); }

}  // namespace dgemma::cli
