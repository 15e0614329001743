#include "server/schema.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "base/quote.h"
#include "text/utf8.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

Error wrong(std::string reason) { return Error{ErrorKind::invalid, std::move(reason)}; }

std::optional<double> number_of(const Value* value) {
    if (is(value, Type::number)) return value->as_number();
    if (is(value, Type::integer)) return std::strtod(value->as_integer().digits.c_str(), nullptr);
    return std::nullopt;
}

bool has_type(std::string_view type, const Value& value) {
    if (type == "string") return value.is(Type::string);
    if (type == "integer")
        return value.is(Type::integer) ||
               (value.is(Type::number) && value.as_number() == std::floor(value.as_number()));
    if (type == "number") return value.is(Type::integer) || value.is(Type::number);
    if (type == "boolean") return value.is(Type::boolean);
    if (type == "array") return value.is(Type::array);
    if (type == "object") return value.is(Type::object);
    if (type == "null") return value.is(Type::null);
    return true;  // a word that JSON Schema does not know
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

Status check_type(const Value& schema, const Value& value, const std::string& where) {
    const Value* type = schema.find("type");
    if (is(type, Type::string)) {
        if (has_type(lower(type->as_string()), value)) return {};
        return wrong(fmt::format("{} must be of type {}, not {}", where, type->as_string(),
                                 text::describe(value.type())));
    }
    if (!is(type, Type::array)) return {};
    for (const Value& one : type->as_array()) {
        if (one.is(Type::string) && has_type(lower(one.as_string()), value)) return {};
    }
    return wrong(fmt::format("{} must be of one of the types {}", where, text::to_json(*type)));
}

Status check_choice(const Value& schema, const Value& value, const std::string& where) {
    if (const Value* only = schema.find("const"); only != nullptr && !(*only == value))
        return wrong(fmt::format("{} must be {}", where, text::to_json(*only)));
    const Value* choices = schema.find("enum");
    if (!is(choices, Type::array)) return {};
    const Value::Array& list = choices->as_array();
    if (std::find(list.begin(), list.end(), value) != list.end()) return {};
    return wrong(fmt::format("{} must be one of {}", where, text::to_json(*choices)));
}

Status check_bounds(const Value& schema, const Value& value, const std::string& where) {
    const auto between = [&](double size, std::string_view least, std::string_view most) -> Status {
        const auto low = number_of(schema.find(least)), high = number_of(schema.find(most));
        if (low && size < *low) return wrong(fmt::format("{} is below {} {}", where, least, *low));
        if (high && size > *high) return wrong(fmt::format("{} is above {} {}", where, most, *high));
        return {};
    };
    if (const auto number = number_of(&value)) {
        const auto above = number_of(schema.find("exclusiveMinimum")),
                   below = number_of(schema.find("exclusiveMaximum"));
        if (above && *number <= *above) return wrong(fmt::format("{} must be above {}", where, *above));
        if (below && *number >= *below) return wrong(fmt::format("{} must be below {}", where, *below));
        return between(*number, "minimum", "maximum");
    }
    if (value.is(Type::string)) {
        double length = 0;
        for (std::size_t at = 0; at < value.as_string().size(); ++length)
            text::next_code_point(value.as_string(), at);
        return between(length, "minLength", "maxLength");
    }
    if (value.is(Type::array))
        return between(static_cast<double>(value.as_array().size()), "minItems", "maxItems");
    return {};
}

Status check_members(const Value& schema, const Value& value, const std::string& where) {
    const Value* properties = schema.find("properties");
    const Value* required = schema.find("required");
    const Value* others = schema.find("additionalProperties");
    if (is(required, Type::array)) {
        for (const Value& name : required->as_array()) {
            if (name.is(Type::string) && value.find(name.as_string()) == nullptr)
                return wrong(fmt::format("{} lacks {}", where, name.as_string()));
        }
    }
    for (const text::Member& member : value.as_object()) {
        const std::string place = where + "." + member.key;
        const Value* property = is(properties, Type::object) ? properties->find(member.key) : nullptr;
        if (property != nullptr) {
            DGEMMA_CHECK(check_value(*property, member.value, place));
        } else if (is(others, Type::boolean) && !others->as_boolean()) {
            return wrong(fmt::format("{} is not declared", place));
        } else if (is(others, Type::object)) {
            DGEMMA_CHECK(check_value(*others, member.value, place));
        }
    }
    return {};
}

Status check_combinations(const Value& schema, const Value& value, const std::string& where) {
    if (const Value* all = schema.find("allOf"); is(all, Type::array)) {
        for (const Value& one : all->as_array()) DGEMMA_CHECK(check_value(one, value, where));
    }
    for (const std::string_view key : {"anyOf", "oneOf"}) {
        const Value* any = schema.find(key);
        if (!is(any, Type::array) || any->as_array().empty()) continue;
        const auto fits = [&](const Value& one) { return check_value(one, value, where).ok(); };
        if (std::none_of(any->as_array().begin(), any->as_array().end(), fits))
            return wrong(fmt::format("{} fits none of its schema's {}", where, key));
    }
    return {};
}

const Value* function_named(const Value& tools, std::string_view name) {
    if (!tools.is(Type::array)) return nullptr;
    for (const Value& tool : tools.as_array()) {
        const Value* function = tool.find("function");
        if (function != nullptr && text_at(*function, "name") == name) return function;
    }
    return nullptr;
}

}  // namespace

// Recursion goes no deeper than schema and value do, which were read with a limit (text::max_json_depth).
Status check_value(const Value& schema, const Value& value, const std::string& where) {
    if (!schema.is(Type::object)) return {};
    // OpenAPI's way to allow null.
    const Value* nullable = schema.find("nullable");
    if (value.is(Type::null) && is(nullable, Type::boolean) && nullable->as_boolean()) return {};
    DGEMMA_CHECK(check_type(schema, value, where));
    DGEMMA_CHECK(check_choice(schema, value, where));
    DGEMMA_CHECK(check_bounds(schema, value, where));
    if (value.is(Type::object)) DGEMMA_CHECK(check_members(schema, value, where));
    if (const Value* items = schema.find("items"); is(items, Type::object) && value.is(Type::array)) {
        for (std::size_t i = 0; i < value.as_array().size(); ++i)
            DGEMMA_CHECK(check_value(*items, value.as_array()[i], fmt::format("{}[{}]", where, i)));
    }
    return check_combinations(schema, value, where);
}

Status check_name(const Value& tools, const text::ToolCall& call) {
    if (function_named(tools, call.name) != nullptr) return {};
    return wrong(fmt::format("there is no tool {}", quote(call.name)));
}

Status check_call(const Value& tools, const text::ToolCall& call) {
    DGEMMA_CHECK(check_name(tools, call));
    const Value* parameters = function_named(tools, call.name)->find("parameters");
    if (parameters == nullptr) return {};
    return check_value(*parameters, call.arguments, "arguments");
}

}  // namespace dgemma::server
