// What a command is given to read: files that a flag names, and stdin.
#pragma once

#include <istream>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/console.h"

namespace dgemma::cli {

// What follows "cannot be opened" and its like: ": Permission denied" of an errno; empty for 0.
std::string system_reason(int code);

// Why a stream that reads from the system ended, where it is bad(): "stdin cannot be read: Is a directory.".
// `code`: errno after the last read.
Error unreadable(const std::string& what, int code);

// The inputs of one command line. "-" as the name of a file is stdin, which can be read only once.
class Inputs {
  public:
    explicit Inputs(Console& console) : console_(console) {}

    // All of a file, a pipe or a device, or of stdin; `flag` named it. A byte order mark before UTF-8, which
    // some editors put there, is left out. Errors: not_found and io with the system's reason; usage where
    // stdin was read before; invalid beyond 256 MiB.
    Result<std::string> read(const std::string& path, std::string_view flag);

    // How a message names it: the path in quotes, or stdin.
    static std::string name_of(const std::string& path);

    // All of stdin, for what `reader` names: "the prompt", "--messages".
    Result<std::string> read_stdin(std::string_view reader);

    // To read stdin line by line. Errors: usage where stdin was read before.
    Result<std::istream*> stdin_stream(std::string_view reader);

  private:
    Console& console_;
    std::string stdin_reader_;  // who read it; empty: no one yet
};

}  // namespace dgemma::cli
