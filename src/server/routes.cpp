#include "server/routes.h"

#include <array>

namespace dgemma::server {

namespace {

constexpr std::array<Route, 13> routes = {{{"/v1/chat/completions", "POST", Api::chat},
                                           {"/v1/completions", "POST", Api::completions},
                                           {"/v1/responses", "POST", Api::responses},
                                           {"/v1/responses/input_tokens", "POST", Api::responses},
                                           {"/v1/responses/ID", "GET", Api::responses, true},
                                           {"/v1/messages", "POST", Api::messages},
                                           {"/v1/messages/count_tokens", "POST", Api::messages},
                                           {"/tokenize", "POST", Api::own},
                                           {"/detokenize", "POST", Api::own},
                                           {"/v1/models", "GET", Api::own},
                                           {"/health", "GET", Api::own},
                                           {"/metrics", "GET", Api::own},
                                           {"/openapi.json", "GET", Api::own}}};

}  // namespace

const Route* route_of(std::string_view path) {
    if (path.starts_with(one_model)) path = "/v1/models";
    for (const Route& route : routes) {
        if (route.path == path) return &route;
    }
    if (path.starts_with(one_response) && path.size() > one_response.size())
        return route_of("/v1/responses/ID");
    return nullptr;
}

bool takes(const Route& route, std::string_view method) {
    return method == route.method || (method == "HEAD" && route.method == "GET") ||
           (method == "DELETE" && route.deletes);
}
std::string methods_of(const Route& route) {
    return std::string(route.method) + (route.method == "GET" ? ", HEAD" : "") +
           (route.deletes ? ", DELETE" : "");
}

Api api_of(std::string_view path) { return path.starts_with("/v1/messages") ? Api::messages : Api::own; }

}  // namespace dgemma::server
