// Ctrl-C as a wish to stop, not as an end.
#pragma once

#include <atomic>

namespace dgemma::cli {

// While one lives, the first SIGINT, SIGTERM or SIGHUP sets the flag and lets the work end in order; the
// second one ends the process at once, as the signal would have without us. One at a time.
class InterruptGuard {
  public:
    InterruptGuard();
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

    [[nodiscard]] const std::atomic<bool>& flag() const;

    // The exit code of a process that ended for the signal that came: 130 for SIGINT, 143 for SIGTERM, 129
    // for SIGHUP.
    [[nodiscard]] int exit_code() const;
};

}  // namespace dgemma::cli
