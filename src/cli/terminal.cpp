#include "cli/terminal.h"

#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace dgemma::cli {

namespace {

// xterm, the Linux console and GNU screen cut lines off. They are told by what they set: xterm's TERM is that
// of nearly all others, and tmux inside of screen is asked first.
bool reflows_lines() {
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    if (is_set("TMUX")) return true;
    const char* kind = std::getenv("TERM");
    return !is_set("XTERM_VERSION") && !is_set("STY") &&
           (kind == nullptr || std::string_view(kind) != "linux");
}

}  // namespace

bool is_terminal(int descriptor) {
    const char* kind = std::getenv("TERM");
    return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb" && isatty(descriptor) == 1;
}

TerminalSize terminal_size(int descriptor) {
    winsize size{};
    if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || size.ws_row < 2) return {};
    return {size.ws_col, size.ws_row, reflows_lines()};
}

void stand_in_for_closed_streams() {
    // open() gives the lowest free number, so that going upwards each one lands in its place.
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(descriptor, F_GETFD) == -1)
            (void)open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

bool wants_colour() {
    const char* no = std::getenv("NO_COLOR");
    return no == nullptr || *no == '\0';
}

}  // namespace dgemma::cli
