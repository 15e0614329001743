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

struct Cell {
    Tone tone = Tone::plain;
    char32_t character = 0;
    int columns = 0;
};

// Breaks what it is given into lines: where it can after a space or beside a wide character, else at the
// edge.
class LineBreaker {
  public:
    LineBreaker(int columns, bool colour, Breaking breaking)
        : columns_(columns), colour_(colour), words_(breaking == Breaking::between_words) {}

    void put(Cell cell) {
        if (words_ &&
            cell.character == U' ') {  // one too many hangs over the edge, where the line is broken later
            append(cell);
            break_at_ = line_.size();
            return;
        }
        while (used_ + cell.columns > columns_ && !line_.empty()) soft_break();
        if (cell.columns == 2) break_at_ = line_.size();
        append(cell);
        if (cell.columns == 2) break_at_ = line_.size();
    }
    void end_line() {
        while (used_ > columns_ && line_.back().character == U' ') drop_last();  // those that hang over
        emit(line_.size());
    }
    [[nodiscard]] int used() const { return used_; }
    std::vector<LaidOutLine> take() { return std::move(lines_); }

  private:
    void append(Cell cell) {
        line_.push_back(cell);
        used_ += cell.columns;
    }
    void drop_last() {
        used_ -= line_.back().columns;
        line_.pop_back();
    }
    void soft_break() {
        std::size_t end = break_at_ > 0 ? break_at_ : line_.size();
        const std::vector<Cell> rest(line_.begin() + static_cast<std::ptrdiff_t>(end), line_.end());
        line_.resize(end);
        while (end > 1 && line_[end - 1].character == U' ') line_.resize(--end);
        emit(line_.size());
        for (const Cell& cell : rest) append(cell);
    }
    // The first `count` cells become a line, and all are gone.
    void emit(std::size_t count) {
        LaidOutLine out;
        Tone tone = Tone::plain;
        for (std::size_t i = 0; i < count; ++i) {
            const Cell& cell = line_[i];
            if (colour_ && cell.tone != tone) out.text += cell.tone == Tone::dim ? dim_code : reset_code;
            tone = cell.tone;
            text::append_utf8(out.text, cell.character);
            out.columns += cell.columns;
        }
        if (colour_ && tone != Tone::plain) out.text += reset_code;
        lines_.push_back(std::move(out));
        line_.clear();
        used_ = 0;
        break_at_ = 0;
    }

    int columns_;
    bool colour_, words_;
    std::vector<Cell> line_;
    int used_ = 0;
    std::size_t break_at_ = 0;  // cells before the last place where the line may be broken; 0: none
    std::vector<LaidOutLine> lines_;
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

std::vector<LaidOutLine> lay_out(const std::vector<Span>& spans, int columns, bool colour,
                                 Breaking breaking) {
    constexpr int tab = 8;
    LineBreaker lines(columns, colour, breaking);
    for (const Span& span : spans) {
        const std::string clean = without_controls(span.text);
        for (std::size_t at = 0; at < clean.size();) {
            const char32_t c = text::next_code_point(clean, at);
            if (c == U'\n') {
                lines.end_line();
            } else if (c == U'\t') {
                const int stop = std::min(columns, (lines.used() / tab + 1) * tab);
                while (lines.used() < stop) lines.put({span.tone, U' ', 1});
            } else {
                lines.put({span.tone, c, columns_of(c)});
            }
        }
    }
    lines.end_line();
    return lines.take();
}

LiveCanvas::LiveCanvas(std::ostream& out, std::function<TerminalSize()> size, bool colour)
    : out_(out), size_(std::move(size)), colour_(colour) {}

LiveCanvas::~LiveCanvas() { clear(); }

std::string LiveCanvas::to_first_line(const TerminalSize& size) const {
    int rows = 0;
    for (const int columns : drawn_) {
        // A terminal that was made narrower has broken the lines anew.
        rows += size.reflows ? std::max(1, (columns + size.columns - 1) / size.columns) : 1;
    }
    return rows > 1 ? fmt::format("\r\x1b[{}A", rows - 1) : "\r";
}

void LiveCanvas::draw(const std::vector<Span>& text, const std::string& status) {
    const TerminalSize size = size_();
    // The last column stays free: some terminals wrap as soon as it is written.
    const int columns = std::max(1, size.columns - 1);
    std::vector<LaidOutLine> lines;
    if (!text.empty()) lines = lay_out(text, columns, colour_);
    const auto room = static_cast<std::size_t>(std::max(1, size.rows - 2));
    if (lines.size() > room) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(room));
    lines.push_back(lay_out({{Tone::dim, status}}, columns, colour_, Breaking::at_the_edge).front());

    std::string frame(clip_lines);
    frame += to_first_line(size);
    drawn_.clear();
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) frame += "\r\n";
        frame += lines[i].text;
        frame += erase_to_end_of_line;
        drawn_.push_back(lines[i].columns);
    }
    frame += erase_below;
    frame += wrap_lines;
    out_ << frame << std::flush;
}

void LiveCanvas::clear() {
    if (drawn_.empty()) return;
    out_ << to_first_line(size_()) << erase_below << std::flush;
    drawn_.clear();
}

}  // namespace dgemma::cli
