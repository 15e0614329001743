#include "cli/interrupt.h"

#include <csignal>

namespace dgemma::cli {

namespace {

// The third is a terminal that was closed.
constexpr int asked_to_stop[] = {SIGINT, SIGTERM, SIGHUP};

std::atomic<bool> wanted{false};
std::atomic<int> signal_seen{SIGINT};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_signal(int number) {
    signal_seen.store(number);
    wanted.store(true);
    std::signal(number, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
    wanted.store(false);
    // What started us may have asked for a signal to be ignored, as nohup and background jobs of scripts do.
    for (const int number : asked_to_stop) {
        if (std::signal(number, on_signal) == SIG_IGN) std::signal(number, SIG_IGN);
    }
}

InterruptGuard::~InterruptGuard() {
    for (const int number : asked_to_stop) {
        if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
    }
}

const std::atomic<bool>& InterruptGuard::flag() const { return wanted; }

int InterruptGuard::exit_code() const { return 128 + signal_seen.load(); }

}  // namespace dgemma::cli
