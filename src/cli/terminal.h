// What a stream is connected to.
#pragma once

namespace dgemma::cli {

struct TerminalSize {
    int columns = 80;
    int rows = 24;
};

// Whether a file descriptor is a terminal that understands cursor movement (TERM set, and not to "dumb").
bool is_terminal(int descriptor);

// The size of the terminal behind a descriptor; 80 by 24 where it has none or says nonsense.
TerminalSize terminal_size(int descriptor);

// Whether to use colours: not where NO_COLOR is set to something.
bool wants_colour();

}  // namespace dgemma::cli
