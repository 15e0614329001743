// Text as Python's str treats it. The chat templates are Jinja run by Python, so their trims, their order of
// keys and their way of printing odd values are Python's (contract/tokenizer.md 2.2, 3.1, 3.2). All texts are
// valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace dgemma::text {

// str.strip(): the white space of contract/tokenizer.md 2.2 taken away at both ends.
std::string_view python_strip(std::string_view text);

// str.upper() and str.lower(), with Unicode's full mappings: one character may become several.
std::string python_upper(std::string_view text);
std::string python_lower(std::string_view text);

// repr() of a string: quoted, with escapes for what cannot be printed.
std::string python_repr(std::string_view text);

}  // namespace dgemma::text
