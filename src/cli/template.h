// `dgemma template --jsonl`: conversations in, rendered prompts out.
#pragma once

#include <iosfwd>

#include "base/result.h"
#include "text/chat_template.h"

namespace dgemma::cli {

// Reads one JSON object a line: `messages`, and if wanted `tools`, `add_generation_prompt`,
// `enable_thinking`, `preserve_thinking`; further keys do not matter. Writes `{"rendered":"..."}` for each,
// or `{"error":"..."}` where the template fails. Blank lines are passed over. Errors: invalid, with the
// number of the line that is no such object; io.
Status template_lines(text::TemplateRevision revision, std::istream& in, std::ostream& out);

}  // namespace dgemma::cli
