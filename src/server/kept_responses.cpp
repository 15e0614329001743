#include "server/kept_responses.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace dgemma::server {

namespace {

constexpr std::string_view input_items = "/input_items";

// The value of `name` in a query; nothing where it is not there.
std::optional<std::string_view> asked(std::string_view query, std::string_view name) {
    while (!query.empty()) {
        const std::size_t end = std::min(query.find('&'), query.size());
        const std::string_view part = query.substr(0, end);
        query.remove_prefix(std::min(end + 1, query.size()));
        const std::size_t equals = std::min(part.find('='), part.size());
        if (part.substr(0, equals) == name) return part.substr(std::min(equals + 1, part.size()));
    }
    return std::nullopt;
}

// An item of the input as clients list it: with an id and a type, its content a list.
Value listed(const Value& item, std::string_view response_id, std::size_t number) {
    Value out = item;
    if (text_at(out, "type").empty()) out.set("type", string("message"));
    if (text_at(out, "id").empty())
        out.set("id",
                string(fmt::format(
                    "msg_{}_{}", response_id.substr(std::min(response_id.find('_') + 1, response_id.size())),
                    number)));
    const Value* content = out.find("content");
    if (is(content, Value::Type::string)) {
        const bool own = text_at(out, "role") == "assistant";
        out.set("content",
                one_of(object({{"type", string(own ? "output_text" : "input_text")}, {"text", *content}})));
    }
    return out;
}

std::variant<std::string, ApiError> input_items_json(const Value::Array& input, std::string_view id,
                                                     std::string_view query) {
    const auto wrong = [](std::string_view field, std::string message) {
        return ApiError{.message = std::move(message), .field = std::string(field)};
    };
    std::size_t limit = 20;
    if (const auto given = asked(query, "limit")) {
        const auto [end, problem] = std::from_chars(given->data(), given->data() + given->size(), limit);
        if (problem != std::errc() || end != given->data() + given->size() || limit < 1 || limit > 100)
            return wrong("limit", "limit must be a whole number from 1 to 100.");
    }
    const std::string_view order = asked(query, "order").value_or("desc");
    if (order != "asc" && order != "desc") return wrong("order", "order must be asc or desc.");
    Value::Array items;
    for (std::size_t i = 0; i < input.size(); ++i) items.push_back(listed(input[i], id, i));
    if (order == "desc") std::reverse(items.begin(), items.end());
    if (const auto after = asked(query, "after")) {
        const auto found = std::find_if(items.begin(), items.end(),
                                        [&](const Value& item) { return text_at(item, "id") == *after; });
        if (found == items.end()) return wrong("after", "after names no item of this response's input.");
        items.erase(items.begin(), found + 1);
    }
    const bool more = items.size() > limit;
    if (more) items.resize(limit);
    const Value first = items.empty() ? Value() : string(text_at(items.front(), "id"));
    const Value last = items.empty() ? Value() : string(text_at(items.back(), "id"));
    return text::to_json(object({{"object", string("list")},
                                 {"data", list(std::move(items))},
                                 {"first_id", first},
                                 {"last_id", last},
                                 {"has_more", boolean(more)}}));
}

}  // namespace

std::variant<std::string, ApiError> kept_response_json(std::string_view method, std::string_view below,
                                                       std::string_view query, ResponseStore& store) {
    const bool items = below.ends_with(input_items);
    const std::string id(items ? below.substr(0, below.size() - input_items.size()) : below);
    if (method == "DELETE") {
        if (items) {
            return ApiError{.status = 405,
                            .code = "method_not_allowed",
                            .message = "Input items go with their response: DELETE /v1/responses/ID."};
        }
        if (store.forget(id))
            return text::to_json(
                object({{"id", string(id)}, {"object", string("response")}, {"deleted", boolean(true)}}));
    } else if (items) {
        if (const auto input = store.input(id)) return input_items_json(*input, id, query);
    } else if (const auto response = store.response(id)) {
        if (asked(query, "stream").value_or("false") != "false") {
            return ApiError{.message = "A kept response comes whole and not as a stream: leave stream out.",
                            .field = "stream"};
        }
        return *response;
    }
    return ApiError{.status = 404,
                    .code = "not_found",
                    .message = fmt::format(
                        "There is no response {} here, or not any more; those with store false are not "
                        "kept, and the least recently used are forgotten.",
                        text::json_quoted(id.substr(0, 100)))};
}

}  // namespace dgemma::server
