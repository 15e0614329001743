// `dgemma tokenize --jsonl`: text in, ids out, or the other way.
#pragma once

#include <iosfwd>

#include "base/result.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

struct TokenizeOptions {
    bool decode = false;        // ids in, text out
    bool no_special = false;    // control tokens in the text are ordinary text, as in text from a client
    bool skip_special = false;  // of decode: leave special tokens out of the text
};

// Reads one JSON object a line and writes one for each: `{"text":"..."}` gives `{"ids":[...]}`, with `decode`
// the other way. Further keys do not matter. Ids that no token has give no text, however large
// (contract/tokenizer.md 1.3). Blank lines are passed over. Errors: invalid, with the number of the line that
// is no such object; io.
Status tokenize_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& options, std::istream& in,
                      std::ostream& out);

}  // namespace dgemma::cli
