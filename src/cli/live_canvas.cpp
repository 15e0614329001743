#include "cli/live_canvas.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/utf8.h"

namespace dgemma::cli {

namespace {

constexpr std::string_view dim_code = "\x1b[2m", reset_code = "\x1b[0m", erase_to_end_of_line = "\x1b[K",
                           erase_below = "\x1b[J", clip_lines = "\x1b[?7l", wrap_lines = "\x1b[?7h";

bool is_control(char32_t c) {
    // C0, DEL, C1, and the marks that turn the writing direction around for what follows.
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069);
}

// One line under construction.
class Line {
  public:
    explicit Line(bool colour) : colour_(colour) {}

    void put(Tone tone, char32_t character, int columns) {
        if (colour_ && tone != tone_) {
            text_ += tone == Tone::dim ? dim_code : reset_code;
            tone_ = tone;
        }
        text::append_utf8(text_, character);
        used_ += columns;
    }
    [[nodiscard]] int used() const { return used_; }
    std::string finish() {
        if (tone_ != Tone::plain) text_ += reset_code;
        tone_ = Tone::plain;
        used_ = 0;
        return std::exchange(text_, {});
    }

  private:
    bool colour_;
    std::string text_;
    Tone tone_ = Tone::plain;
    int used_ = 0;
};

}  // namespace

int columns_of(char32_t character) {
    return std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(character)));
}

std::string without_controls(std::string_view text) {
    const std::string valid = text::sanitize_utf8(text);
    std::string out;
    for (std::size_t at = 0; at < valid.size();) {
        const char32_t c = text::next_code_point(valid, at);
        text::append_utf8(out, is_control(c) && c != U'\n' && c != U'\t' ? U'\xFFFD' : c);
    }
    return out;
}

std::vector<std::string> lay_out(const std::vector<Span>& spans, int columns, bool colour) {
    constexpr int tab = 8;
    std::vector<std::string> lines;
    Line line(colour);
    for (const Span& span : spans) {
        const std::string clean = without_controls(span.text);
        for (std::size_t at = 0; at < clean.size();) {
            const char32_t c = text::next_code_point(clean, at);
            if (c == U'\n') {
                lines.push_back(line.finish());
                continue;
            }
            if (c == U'\t') {
                const int stop = std::min(columns, (line.used() / tab + 1) * tab);
                while (line.used() < stop) line.put(span.tone, U' ', 1);
                continue;
            }
            const int width = columns_of(c);
            if (line.used() + width > columns) lines.push_back(line.finish());
            line.put(span.tone, c, width);
        }
    }
    lines.push_back(line.finish());
    return lines;
}

LiveCanvas::LiveCanvas(std::ostream& out, std::function<TerminalSize()> size, bool colour)
    : out_(out), size_(std::move(size)), colour_(colour) {}

LiveCanvas::~LiveCanvas() { clear(); }

void LiveCanvas::draw(const std::vector<Span>& text, const std::string& status) {
    const TerminalSize size = size_();
    // The last column stays free: some terminals wrap as soon as it is written.
    const int columns = std::max(1, size.columns - 1);
    std::vector<std::string> lines;
    if (!text.empty()) lines = lay_out(text, columns, colour_);
    const auto room = static_cast<std::size_t>(std::max(1, size.rows - 2));
    if (lines.size() > room) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(room));
    lines.push_back(lay_out({{Tone::dim, status}}, columns, colour_).front());

    std::string frame(clip_lines);
    frame += '\r';
    if (drawn_ > 1) frame += fmt::format("\x1b[{}A", drawn_ - 1);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) frame += "\r\n";
        frame += lines[i];
        frame += erase_to_end_of_line;
    }
    frame += erase_below;
    frame += wrap_lines;
    out_ << frame << std::flush;
    drawn_ = static_cast<int>(lines.size());
}

void LiveCanvas::clear() {
    if (drawn_ == 0) return;
    std::string frame = "\r";
    if (drawn_ > 1) frame += fmt::format("\x1b[{}A", drawn_ - 1);
    frame += erase_below;
    out_ << frame << std::flush;
    drawn_ = 0;
}

}  // namespace dgemma::cli
