// The paths of the server, and what each of them takes.
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"

namespace dgemma::server {

struct Route {
    std::string_view path;  // "ID" in it stands for a part of a path
    std::string_view method;
    Api api;               // whose errors its errors are like
    bool deletes = false;  // takes DELETE, too
};

inline constexpr std::string_view one_model = "/v1/models/", one_response = "/v1/responses/";

// The route of a request's path; null where there is none.
const Route* route_of(std::string_view path);
bool takes(const Route& route, std::string_view method);
// As the header Allow has them.
std::string methods_of(const Route& route);
// The text of a part of a path or of a query; what is no %XX stays as it is.
std::string percent_decoded(std::string_view text);
// The API that a path belongs to, whether or not there is such a path.
Api api_of(std::string_view path);

}  // namespace dgemma::server
