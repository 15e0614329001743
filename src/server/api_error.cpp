#include "server/api_error.h"

#include "server/json.h"

namespace dgemma::server {

namespace {

// What this server does not speak is the client's to change, whatever its status says.
bool is_ours(int status) { return status >= 500 && status != 501 && status != 505; }

// OpenAI's `type`: who is to blame.
std::string_view error_type(const ApiError& error) {
    switch (error.status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 429:
            return "rate_limit_error";
        default:
            return is_ours(error.status) ? "server_error" : "invalid_request_error";
    }
}

std::string sentence(std::string text) {
    if (!text.empty() && std::string_view(".?!").find(text.back()) == std::string_view::npos) text += '.';
    return text;
}

}  // namespace

ApiError api_error_of(const Error& error, std::string_view field) {
    ApiError out;
    out.message = sentence(error.message);
    out.field = field;
    switch (error.kind) {
        case ErrorKind::usage:
        case ErrorKind::invalid:
        case ErrorKind::unsupported:
            return out;
        case ErrorKind::context_length:
            out.code = "context_length_exceeded";
            return out;
        case ErrorKind::memory:
            out.code = "memory_exceeded";
            return out;
        case ErrorKind::overloaded:
            out.status = 429;
            out.code = "rate_limit_exceeded";
            out.field.clear();
            return out;
        case ErrorKind::not_found:
        case ErrorKind::cancelled:
        case ErrorKind::non_finite:
        case ErrorKind::io:
            break;
    }
    out.status = 500;
    out.code = "server_error";
    out.field.clear();
    return out;
}

std::string_view messages_error_type(const ApiError& error) {
    switch (error.status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
        case 529:
            return "overloaded_error";
        case 504:
            return "timeout_error";
        default:
            return is_ours(error.status) ? "api_error" : "invalid_request_error";
    }
}

std::string error_json(Api api, const ApiError& error, std::string_view request_id) {
    if (api == Api::messages) {
        // Anthropic has no place for the field's name but the sentence.
        const bool named = error.field.empty() || error.message.find(error.field) != std::string::npos;
        return text::to_json(object(
            {{"type", string("error")},
             {"error",
              object({{"type", string(messages_error_type(error))},
                      {"message", string(named ? error.message : error.field + ": " + error.message)}})},
             {"request_id", string(request_id)}}));
    }
    return text::to_json(
        object({{"error", object({{"message", string(error.message)},
                                  {"type", string(error_type(error))},
                                  {"param", error.field.empty() ? Value() : string(error.field)},
                                  {"code", string(error.code)}})}}));
}

}  // namespace dgemma::server
