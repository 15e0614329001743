// The streams of a process and what they are connected to; tests give string streams.
#pragma once

#include <istream>
#include <ostream>

#include "base/result.h"
#include "cli/arguments.h"

namespace dgemma::cli {

struct Console {
    std::istream& in;
    std::ostream& out;  // answers and results only
    std::ostream& err;  // everything else
    bool in_is_terminal = false;
    bool out_is_terminal = false;
    bool err_is_terminal = false;
    bool colour = false;
};

}  // namespace dgemma::cli
