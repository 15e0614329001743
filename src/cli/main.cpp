#include <iostream>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/terminal.h"
#include "cli/verbs.h"

int main(int count, char** words) {
    using namespace dgemma::cli;
    stand_in_for_closed_streams();
    std::ios::sync_with_stdio(false);
    std::cin.tie(nullptr);
    const std::vector<std::string> args(words + (count > 0 ? 1 : 0), words + count);
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    const bool err_is_terminal = is_terminal(STDERR_FILENO);
    Console console{.in = std::cin,
                    .out = std::cout,
                    .err = std::cerr,
                    .in_is_terminal = isatty(STDIN_FILENO) == 1,
                    .out_is_terminal = is_terminal(STDOUT_FILENO),
                    .err_is_terminal = err_is_terminal,
                    .colour = err_is_terminal && wants_colour()};
    return run(args, environment, console);
}
