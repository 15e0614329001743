// The canvas being denoised, redrawn in place at the bottom of a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal.h"

namespace dgemma::cli {

enum class Tone : std::uint8_t {
    plain,
    dim,  // not settled yet, or beside the point
};

struct Span {
    Tone tone = Tone::plain;
    std::string text;  // UTF-8; may hold line feeds
};

// Columns that a terminal uses for a character: 0 for combining marks, 2 for wide ones, else 1.
int columns_of(char32_t character);

// `text` with everything that would move a terminal's cursor or change its state replaced by U+FFFD: control
// characters except line feed and tab, and bytes that are not UTF-8.
std::string without_controls(std::string_view text);

struct LaidOutLine {
    std::string text;  // with its own colour codes, reset at its end
    int columns = 0;
};

enum class Breaking : std::uint8_t { between_words, at_the_edge };

// Lays spans out in lines of at most `columns` columns; a word that is longer than a line is broken at the
// edge. No colour codes where `colour` is off. Tabs become spaces. At least one line.
std::vector<LaidOutLine> lay_out(const std::vector<Span>& spans, int columns, bool colour,
                                 Breaking breaking = Breaking::between_words);

// A few lines at the bottom of a terminal that are replaced as a whole.
//
// Nothing about the terminal is changed for longer than one write: the cursor is moved relative to where it
// was (saving and restoring a position breaks when the screen scrolls), and lines are clipped by the terminal
// while they are drawn, so a character whose width we misjudge cannot push the rest down. A process that is
// killed leaves a drawn frame behind and a terminal that works.
class LiveCanvas {
  public:
    // out: the terminal. size: asked at every frame, because windows are resized.
    LiveCanvas(std::ostream& out, std::function<TerminalSize()> size, bool colour);
    ~LiveCanvas();
    LiveCanvas(const LiveCanvas&) = delete;
    LiveCanvas& operator=(const LiveCanvas&) = delete;

    // Replaces the frame: the text, of which the last lines are shown if it is longer than the screen, and
    // under it the status line. The cursor must stand at the beginning of a line when the first frame is
    // drawn.
    void draw(const std::vector<Span>& text, const std::string& status);

    // Takes the frame away; the cursor is where it was before the first one.
    void clear();

  private:
    // What takes the cursor from the end of the frame to the beginning of its first line.
    [[nodiscard]] std::string to_first_line(const TerminalSize& size) const;

    std::ostream& out_;
    std::function<TerminalSize()> size_;
    bool colour_;
    std::vector<int> drawn_;  // the lines on the screen, by their columns
};

}  // namespace dgemma::cli
