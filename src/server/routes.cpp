#include "server/routes.h"

#include <algorithm>
#include <array>

namespace dgemma::server {

namespace {

constexpr std::array<Route, 14> routes = {{{"/v1/chat/completions", "POST", Api::chat},
                                           {"/v1/completions", "POST", Api::completions},
                                           {"/v1/responses", "POST", Api::responses},
                                           {"/v1/responses/input_tokens", "POST", Api::responses},
                                           {"/v1/responses/ID", "GET", Api::responses, true},
                                           {"/v1/responses/ID/input_items", "GET", Api::responses},
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
    if (!path.starts_with(one_response)) return nullptr;
    const std::string_view below = path.substr(one_response.size());
    const std::size_t id = std::min(below.find('/'), below.size());
    if (id == 0) return nullptr;
    if (id == below.size()) return route_of("/v1/responses/ID");
    return below.substr(id) == "/input_items" ? route_of("/v1/responses/ID/input_items") : nullptr;
}

bool takes(const Route& route, std::string_view method) {
    return method == route.method || (method == "HEAD" && route.method == "GET") ||
           (method == "DELETE" && route.deletes);
}
std::string methods_of(const Route& route) {
    return std::string(route.method) + (route.method == "GET" ? ", HEAD" : "") +
           (route.deletes ? ", DELETE" : "");
}

std::string percent_decoded(std::string_view text) {
    const auto digit = [](char c) {
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : -1;
    };
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
            out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

Api api_of(std::string_view path) { return path.starts_with("/v1/messages") ? Api::messages : Api::own; }

}  // namespace dgemma::server
