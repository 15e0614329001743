// The conversation of a request, brought into the template's form, and how its parts are called in the
// request.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/fields.h"
#include "server/request.h"

namespace dgemma::server {

// Brings messages and tools in the form of the chat API into the template's. Checks that results follow their
// calls, one for each, and that no two tools share a name. With exact off a last assistant message with
// answered calls loses its content, since the template would close the turn after it (contract/tokenizer.md
// 2.8). out.api and out.places say how its parts are called in complaints.
void read_conversation(const Value& messages, const Value& tools, GenerationRequest& out,
                       Complaint& complaint);

// "auto", "none", "required" ("any"), or a name in `named`; checked against the tools. field: where the name
// stands.
void choose_tool(std::string_view field, std::string_view kind, std::string_view name, GenerationRequest& out,
                 Complaint& complaint);

// A list of tools that have no wrapper, in the form of the chat API, {"type": "function", "function": ...}.
// Null for none. function_of: what a tool's fields say as `function`; where: how the tool is called in
// complaints.
Value wrapped_tools(const Value* given, Complaint& complaint,
                    const std::function<Value(Fields& tool, const std::string& where)>& function_of);

// A message of the chat API.
Value message_of(std::string_view role, Value content);

// How message i of the template's form is called in the request: "messages[0]", "input[3]".
std::string place_of(const GenerationRequest& request, std::size_t i);

// What holds the conversation: "messages", "input" or "prompt".
std::string_view conversation_field(Api api);

// An error of the text rooms about the conversation, in the request's own words. Where its sentence begins
// with the path of what is wrong, as those of text/messages and text/chat_template do, that is the field.
ApiError conversation_error(const GenerationRequest& request, const Error& error);

}  // namespace dgemma::server
