#include "server/kept_responses.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/quote.h"
#include "server/routes.h"

namespace dgemma::server {

namespace {

// The value of `name` in a query; nothing where it is not there.
std::optional<std::string> asked(std::string_view query, std::string_view name) {
    while (!query.empty()) {
        const std::size_t end = std::min(query.find('&'), query.size());
        const std::string_view part = query.substr(0, end);
        query.remove_prefix(std::min(end + 1, query.size()));
        const std::size_t equals = std::min(part.find('='), part.size());
        if (percent_decoded(part.substr(0, equals)) == name)
            return percent_decoded(part.substr(std::min(equals + 1, part.size())));
    }
    return std::nullopt;
}

// An item of the input as clients list it: with an id, a type and a status, its content a list. Ids are those
// of no other item, or a client that goes from page to page would never come to the end. number: of the item.
Value listed(const Value& item, std::string_view response_id, std::size_t number,
             std::set<std::string>& ids) {
    Value out = item;
    if (text_at(out, "type").empty()) out.set("type", string("message"));
    const std::string type(text_at(out, "type"));
    if (std::string id(text_at(out, "id")); id.empty() || !ids.insert(std::move(id)).second) {
        const std::string_view kind = type == "message" ? "msg" : type == "reasoning" ? "rs" : "fc";
        // Of the response's own items, which have its name and their number, too, this is none.
        out.set("id",
                string(fmt::format(
                    "{}_{}_in{}", kind,
                    response_id.substr(std::min(response_id.find('_') + 1, response_id.size())), number)));
    }
    if (type != "reasoning" && text_at(out, "status").empty()) out.set("status", string("completed"));
    if (const Value* content = out.find("content"); type == "message" && is(content, Value::Type::string)) {
        Value part = object({{"type", string("input_text")}, {"text", *content}});
        if (text_at(out, "role") == "assistant")
            part = object({{"type", string("output_text")}, {"text", *content}, {"annotations", list()}});
        out.set("content", one_of(std::move(part)));
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
    const std::string order = asked(query, "order").value_or("desc");
    if (order != "asc" && order != "desc") return wrong("order", "order must be asc or desc.");
    Value::Array items;
    std::set<std::string> ids;
    for (std::size_t i = 0; i < input.size(); ++i) items.push_back(listed(input[i], id, i, ids));
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
    const std::size_t slash = std::min(below.find('/'), below.size());
    const bool items = slash < below.size();
    const std::string id = percent_decoded(below.substr(0, slash));
    if (method == "DELETE") {
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
                        quote(id))};
}

}  // namespace dgemma::server
