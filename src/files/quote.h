// Names out of a file, made fit to stand in a message.
#pragma once

#include <string>
#include <string_view>

namespace dgemma::files {

// "name" in double quotes. A name from a file may be megabytes long or hold terminal control sequences: it is
// cut at 200 bytes, and bytes outside printable ASCII are written as \xNN.
std::string quote(std::string_view name);

}  // namespace dgemma::files
