// Whether a tool call is one of those declared, and its arguments fit the schema.
#pragma once

#include "base/result.h"
#include "server/json.h"
#include "text/tool_call.h"

namespace dgemma::server {

// tools: a list in the form of the chat API. Errors: invalid, with the reason.
Status check_name(const Value& tools, const text::ToolCall& call);
// The same, and the arguments against `parameters`.
Status check_call(const Value& tools, const text::ToolCall& call);

// A value against a JSON schema: type, enum, const, properties, required, additionalProperties, items, the
// bounds of numbers, texts and lists, anyOf, oneOf and allOf. What else a schema says is passed over. where:
// how the value is called in the reason.
Status check_value(const Value& schema, const Value& value, const std::string& where);

}  // namespace dgemma::server
