// The common loop of the verbs that read one JSON object a line and write one line for each.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "base/result.h"
#include "text/value.h"

namespace dgemma::cli {

// Calls `answer` with the object of each line and writes what it gives as a line, at once. Blank lines are
// passed over. Stops with an error that starts with the number of the line (from 1) when a line is no JSON
// object or `answer` refuses it; the error of `answer` is the rest of that sentence ("has no `messages`").
// Errors: invalid; io when `in` (named stdin) or `out` fails.
Status for_each_json_line(std::istream& in, std::ostream& out,
                          const std::function<Result<std::string>(const text::Value& object)>& answer);

}  // namespace dgemma::cli
