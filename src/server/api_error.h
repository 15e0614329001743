// What a client is told when its request cannot be answered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dgemma::server {

// Whose shapes requests, replies and errors have.
enum class Api : std::uint8_t { chat, completions, responses, messages, own };

struct ApiError {
    int status = 400;
    // In the words of the OpenAI API: "invalid_request_error", "model_not_found", "context_length_exceeded",
    // ...
    std::string code = "invalid_request_error";
    std::string message;  // one sentence
    std::string field;    // of the request, where one is to blame
    int retry_after = 0;  // seconds; 0: the client is told nothing
};

// An error of the engine or of the text rooms. field: what it is blamed on, if the client's request is at
// all.
ApiError api_error_of(const Error& error, std::string_view field);

// {"error": {"message", "type", "param", "code"}}, or for Api::messages {"type": "error", "error": {"type",
// "message"}, "request_id"}.
std::string error_json(Api api, const ApiError& error, std::string_view request_id);

// The word that the API of Anthropic has for this error: "invalid_request_error", "overloaded_error", ...
std::string_view messages_error_type(const ApiError& error);

}  // namespace dgemma::server
