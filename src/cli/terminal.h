// What a stream is connected to.
#pragma once

namespace dgemma::cli {

struct TerminalSize {
    int columns = 80;
    int rows = 24;
    // Whether lines that no longer fit are broken anew when the window is made narrower, as most terminals
    // do, and not cut off.
    bool reflows = true;
};

// Whether a file descriptor is a terminal that understands cursor movement (TERM set, and not to "dumb").
bool is_terminal(int descriptor);

// The size of the terminal behind a descriptor; 80 by 24 where it has none or says nonsense.
TerminalSize terminal_size(int descriptor);

// Opens what stands in for stdin, stdout and stderr where the process was started without them: using them
// fails as it should, and no file that is opened later gets their numbers and is read or written in their
// place. Call it before anything is opened.
void stand_in_for_closed_streams();

// Whether to use colours: not where NO_COLOR is set to something.
bool wants_colour();

}  // namespace dgemma::cli
