#include "cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "cli/words.h"

namespace dgemma::cli {

namespace {

constexpr double between_frames = 0.1, between_lines = 10;

}  // namespace

std::string time_text(double seconds) {
    const std::int64_t whole = std::llround(std::clamp(seconds, 0.0, 1e9));
    const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
    if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
    return fmt::format("{}:{:02}", minutes, rest);
}

ProgressBar::Clock ProgressBar::steady_clock() {
    return [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
}

ProgressBar::ProgressBar(Console& console, std::string label, std::uint64_t total, Clock clock)
    : console_(console),
      label_(std::move(label)),
      total_(total),
      clock_(std::move(clock)),
      began_(clock_()),
      shown_(began_) {}

ProgressBar::~ProgressBar() { stop(); }

void ProgressBar::advance(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ = std::min(total_, done_ + bytes);
    const double now = clock_();
    if (finished_ || now - shown_ < (console_.err_is_terminal ? between_frames : between_lines)) return;
    show(now);
}

std::string ProgressBar::line(double seconds, int columns) const {
    const double share = total_ == 0 ? 1 : static_cast<double>(done_) / static_cast<double>(total_);
    const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
    std::string text = fmt::format("{:3.0f}%  {} of {}  {}/s", share * 100, bytes_text(done_),
                                   bytes_text(total_), bytes_text(static_cast<std::uint64_t>(rate)));
    if (done_ > 0 && done_ < total_)
        text += fmt::format("  {} left", time_text(seconds * (1 - share) / share));
    const int width = std::min(30, columns - static_cast<int>(label_.size() + text.size()) - 8);
    if (!console_.err_is_terminal || width < 5) return fmt::format("{}  {}", label_, text);
    const auto full = static_cast<int>(share * width);
    return fmt::format("{}  [{:#<{}}{:.<{}}]  {}", label_, "", full, "", width - full, text);
}

void ProgressBar::show(double now) {
    shown_ = now;
    if (!console_.err_is_terminal) {
        console_.err << line(now - began_, 0) << std::endl;
        return;
    }
    const int columns = terminal_size(STDERR_FILENO).columns;
    std::string text = line(now - began_, columns);
    // A line that wraps could not be redrawn.
    if (std::ssize(text) >= columns) text.resize(static_cast<std::size_t>(columns - 1));
    console_.err << "\r\x1b[K" << text << std::flush;
    drawn_ = true;
}

void ProgressBar::stop() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(finished_, true) && drawn_) console_.err << "\r\x1b[K" << std::flush;
}

void ProgressBar::finish() {
    stop();
    const double seconds = clock_() - began_;
    const double rate = static_cast<double>(total_) / std::max(seconds, 1e-3);
    console_.err << fmt::format("{}: {} in {}, {}/s\n", label_, bytes_text(total_), time_text(seconds),
                                bytes_text(static_cast<std::uint64_t>(rate)))
                 << std::flush;
}

}  // namespace dgemma::cli
