// How far a long operation is: a bar on a terminal, a line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>

#include "cli/console.h"

namespace dgemma::cli {

// "0:07", "12:30", "1:02:03"
std::string time_text(double seconds);

// Draws on the console's stderr: on a terminal one line, redrawn in place ten times a second and taken away
// at the end; else a line every ten seconds and one at the end. Bytes may be counted from any thread.
class ProgressBar {
  public:
    using Clock = std::function<double()>;  // seconds since any moment

    // label: what is going on, in a word ("quantizing"). total: in bytes; 0 is treated as nothing to do.
    ProgressBar(Console& console, std::string label, std::uint64_t total, Clock clock = steady_clock());
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    void advance(std::uint64_t bytes);
    // Takes the bar away; after finish() a line with the total, the time and the rate stays behind.
    void finish();
    void stop();

    static Clock steady_clock();

  private:
    [[nodiscard]] std::string line(double seconds, int columns) const;
    void show(double now);

    Console& console_;
    std::string label_;
    std::uint64_t total_, done_ = 0;
    Clock clock_;
    double began_, shown_;
    bool drawn_ = false, finished_ = false;
    std::mutex mutex_;
};

}  // namespace dgemma::cli
