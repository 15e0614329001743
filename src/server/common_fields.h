// The fields that several APIs share, and their conversations.
#pragma once

#include <string>
#include <string_view>

#include "server/fields.h"
#include "server/request.h"

namespace dgemma::server {

inline constexpr std::uint64_t most_tokens = 16777216;

// What is wrong with a body that is no JSON object.
std::optional<ApiError> no_object(const Value& body);

// model, stream, temperature, top_p, top_k, min_p, seed, diffusion, and what thinking is called where an API
// has no word of its own: enable_thinking, chat_template_kwargs. most_temperature: the API's own limit.
void read_common(Fields& fields, double most_temperature, GenerationRequest& out, Complaint& complaint);

// `stop`, a text or a list of them; `stop_sequences` is a list.
void read_stops(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint);

// Accepted without effect in the APIs of OpenAI: n, penalties, user, metadata, store, ...
void read_neutral(Fields& fields);

// Brings messages and tools in the form of the chat API into the template's, and checks that results follow
// their calls. With exact off a last assistant message with answered calls loses its content, since the
// template would close the turn after it (contract/tokenizer.md 2.8).
void read_conversation(const Value& messages, const Value& tools, GenerationRequest& out,
                       Complaint& complaint);

// "auto", "none", "required" ("any"), or a name in `named`; checked against the tools.
void choose_tool(std::string_view field, std::string_view kind, std::string_view name, GenerationRequest& out,
                 Complaint& complaint);

// A message of the chat API.
Value message_of(std::string_view role, Value content);

}  // namespace dgemma::server
