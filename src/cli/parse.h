// `dgemma parse --jsonl`: model output in, its parts out.
#pragma once

#include <iosfwd>
#include <string>

#include "base/result.h"
#include "text/output_parser.h"

namespace dgemma::cli {

// Reads one JSON object a line: `output`, the text of a reply with its control tokens spelled out, and
// `prompt_state`, "content" (also when absent) or "reasoning", for a prompt that ended in an open thought.
// Writes reply_json() of each. Blank lines are passed over. Errors: invalid, with the number of the line that
// is no such object; io.
Status parse_lines(std::istream& in, std::ostream& out);

// {"reasoning_content", "content", "tool_calls": [{"name", "arguments"}], "stop_token"}; null for what is not
// there.
std::string reply_json(const text::ParsedReply& reply);

}  // namespace dgemma::cli
