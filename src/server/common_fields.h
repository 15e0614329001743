// The fields that several APIs share.
#pragma once

#include <initializer_list>
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

// The limit of the reply, under the first of these names that has one.
void read_max_tokens(Fields& fields, std::initializer_list<std::string_view> names, GenerationRequest& out);

// `stop`, a text or a list of them; `stop_sequences` is a list.
void read_stops(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint);

// How hard to think, which is whether to think; an explicit enable_thinking stands before it.
void read_effort(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint);

// Accepted without effect in the APIs of OpenAI: n, penalties, user, metadata, store, ...
void read_neutral(Fields& fields);

}  // namespace dgemma::server
