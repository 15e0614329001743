// A reply as text: the answer on stdout, the thought and the canvas being denoised on stderr.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/live_canvas.h"
#include "reply/reply_sink.h"

namespace dgemma::cli {

// Where stderr is a terminal, the canvas is redrawn there step by step. If stdout is that terminal too, the
// last line of the answer is shown as part of the canvas until it is complete, because the canvas has to
// begin where a line begins. Piped, nothing but text is written. A tool call is a line of JSON in the answer.
class TextView : public reply::ReplyView {
  public:
    // size: of the terminal. frame_time: no two frames follow each other faster.
    TextView(Console& console, std::function<TerminalSize()> size, std::chrono::milliseconds frame_time);

    void on_prefill(const engine::PrefillEvent& event) override;
    void on_step(const engine::StepEvent& event, const reply::ReplyText& so_far) override;
    void on_text(const text::ParserEvent& event) override;
    void on_end(const engine::EndEvent& end, const text::ParsedReply& whole) override;

    // The reply ends here, whatever is missing: takes the canvas away and completes the last lines.
    void close();

  private:
    void answer(const std::string& text);
    void think(const std::string& text);
    void end_thought();
    void write_answer(std::string_view text);
    void write_thought(std::string_view text);
    void draw(const std::vector<Span>& draft, const std::string& status);
    [[nodiscard]] bool due();

    Console& console_;
    std::optional<LiveCanvas> canvas_;
    std::chrono::milliseconds frame_time_;
    std::optional<std::chrono::steady_clock::time_point> last_frame_;
    std::string open_answer_;       // the last line of the answer, where it is shown as part of the canvas
    std::string open_thought_;      // the last line of the thought, likewise
    bool thought_in_line_ = false;  // stderr stands within a line of the thought
    bool answer_in_line_ = false;   // stdout stands within a line
};

}  // namespace dgemma::cli
