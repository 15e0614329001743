// Text of others made fit to stand in a message.
#pragma once

#include <string>
#include <string_view>

namespace dgemma {

// `text` in double quotes on one line. A name from a file, a flag or a client may be megabytes long or steer
// the terminal: control characters, marks that turn the writing direction, line separators and bytes that are
// not UTF-8 become \xNN, and what is longer than 200 bytes is cut.
std::string quote(std::string_view text);

// The same without the quotes.
std::string printable(std::string_view text);

}  // namespace dgemma
