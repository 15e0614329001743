#include "cli/terminal.h"

#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace dgemma::cli {

bool is_terminal(int descriptor) {
    const char* kind = std::getenv("TERM");
    return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb" && isatty(descriptor) == 1;
}

TerminalSize terminal_size(int descriptor) {
    winsize size{};
    if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || size.ws_row < 2) return {};
    return {size.ws_col, size.ws_row};
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
