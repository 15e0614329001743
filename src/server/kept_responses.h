// What GET and DELETE answer below /v1/responses/: responses that are still kept.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "server/api_error.h"
#include "server/response_store.h"

namespace dgemma::server {

// method: one that the route takes; below: of the path, "ID" or "ID/input_items"; query: behind the question
// mark; both as sent. -> JSON. Usable from any thread.
std::variant<std::string, ApiError> kept_response_json(std::string_view method, std::string_view below,
                                                       std::string_view query, ResponseStore& store);

}  // namespace dgemma::server
