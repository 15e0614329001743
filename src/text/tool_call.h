// A tool call as the model writes it: `call:NAME{key:value,...}`.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/value.h"

namespace dgemma::text {

struct ToolCall {
    std::string name;
    Value arguments;  // an object, keys in the order met

    friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// Stands for the quote marker `<|"|>` in the text of a call. It occurs in no UTF-8 text, while the marker's
// spelling may well be ordinary text.
inline constexpr char quote_byte = '\xFF';

// Reads what stood between the markers of a call: valid UTF-8 but for quote bytes. The grammar is that of
// contract/tokenizer.md 5; beyond it, an unquoted key must hold no comma or brace and begin with no bracket,
// and nothing but white space may follow the call. Errors: invalid, with the reason.
Result<ToolCall> parse_tool_call(std::string_view body);

// Whether a call can say this name: it holds no brace, and is not empty or within spaces.
bool can_be_called(std::string_view name);

}  // namespace dgemma::text
