#include "server/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// A JSON value on a line of a message.
std::string shown(const Value& value) {
    std::string json = text::to_json(value);
    if (json.size() <= 60) return json;
    return std::string(text::describe(value.type()));
}

std::optional<double> number_of(const Value& value) {
    if (value.is(Type::number)) return value.as_number();
    if (!value.is(Type::integer)) return std::nullopt;
    const std::string& digits = value.as_integer().digits;
    double out = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return error == std::errc() ? std::optional(out) : std::nullopt;
}

bool is_empty(const Value& value) {
    return (value.is(Type::object) && value.as_object().empty()) ||
           (value.is(Type::array) && value.as_array().empty());
}

}  // namespace

std::optional<std::int32_t> token_id(const Value& value) {
    const std::optional<double> number = number_of(value);
    if (!number || *number < 0 || *number >= 1e9 || *number != std::floor(*number)) return std::nullopt;
    return static_cast<std::int32_t>(*number);
}

bool must_be_object(const Value& value, const std::string& where, Complaint& complaint) {
    if (value.is(Type::object)) return true;
    complaint.refuse(where,
                     fmt::format("{} must be an object, not {}.", where, text::describe(value.type())));
    return false;
}

void Complaint::refuse(std::string field, std::string message) {
    if (error) return;
    error = ApiError{.message = std::move(message), .field = std::move(field)};
}

void Complaint::cannot(std::string field, std::string message) {
    if (error || lenient) return;
    error =
        ApiError{.code = "unsupported_parameter", .message = std::move(message), .field = std::move(field)};
}

Fields::Fields(const Value& object, std::string path, Complaint& complaint)
    : object_(object), path_(std::move(path)), complaint_(complaint) {}

const Value* Fields::take(std::string_view name) {
    known_.emplace(name);
    const Value* found = object_.find(name);
    return is_null(found) ? nullptr : found;
}

std::optional<std::string> Fields::text(std::string_view name) {
    const Value* value = take(name);
    if (value == nullptr) return std::nullopt;
    if (value->is(Type::string)) return value->as_string();
    complaint_.refuse(path_of(name),
                      fmt::format("{} must be a string, not {}.", path_of(name), shown(*value)));
    return std::nullopt;
}

std::string Fields::needed_text(std::string_view name) {
    std::optional<std::string> given = text(name);
    if (!given)
        complaint_.refuse(path_of(name), fmt::format("{} is missing; it must be a string.", path_of(name)));
    return std::move(given).value_or("");
}

std::string Fields::needed_name(std::string_view name) {
    std::string given = needed_text(name);
    if (given.empty()) complaint_.refuse(path_of(name), path_of(name) + " is empty.");
    return given;
}

std::optional<bool> Fields::toggle(std::string_view name) {
    const Value* value = take(name);
    if (value == nullptr) return std::nullopt;
    if (value->is(Type::boolean)) return value->as_boolean();
    complaint_.refuse(path_of(name),
                      fmt::format("{} must be true or false, not {}.", path_of(name), shown(*value)));
    return std::nullopt;
}

std::optional<std::uint64_t> Fields::whole(std::string_view name, std::uint64_t least, std::uint64_t most) {
    const Value* value = take(name);
    if (value == nullptr) return std::nullopt;
    std::optional<std::uint64_t> out;
    if (value->is(Type::integer)) {
        const std::string& digits = value->as_integer().digits;
        std::uint64_t number = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
        if (error == std::errc() && end == digits.data() + digits.size()) out = number;
    } else if (value->is(Type::number)) {
        const double number = value->as_number();
        // Some clients write whole numbers as 100.0. Beyond 2^53 a double names no one of them.
        if (number >= 0 && number <= 9007199254740992.0 && number == std::floor(number))
            out = static_cast<std::uint64_t>(number);
    }
    if (out && *out >= least && *out <= most) return out;
    complaint_.refuse(path_of(name), fmt::format("{} must be a whole number from {} to {}, not {}.",
                                                 path_of(name), least, most, shown(*value)));
    return std::nullopt;
}

std::optional<double> Fields::real(std::string_view name, double least, double most) {
    const Value* value = take(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<double> out = number_of(*value);
    if (out && *out >= least && *out <= most) return *out + 0.0;  // -0 as 0
    complaint_.refuse(path_of(name), fmt::format("{} must be a number from {} to {}, not {}.", path_of(name),
                                                 least, most, shown(*value)));
    return std::nullopt;
}

std::optional<float> Fields::above_zero(std::string_view name, float most) {
    const Value* value = take(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<double> number = number_of(*value);
    // What is 0 as a float is not above it.
    const float out = number && *number <= most ? static_cast<float>(*number) : 0;
    if (out > 0) return out;
    complaint_.refuse(path_of(name), fmt::format("{} must be a number above 0 and at most {}, not {}.",
                                                 path_of(name), most, shown(*value)));
    return std::nullopt;
}

bool Fields::is_number(std::string_view name, double number) {
    const Value* value = take(name);
    return value != nullptr && number_of(*value) == number;
}

const Value* Fields::list(std::string_view name) {
    const Value* value = take(name);
    if (value == nullptr || value->is(Type::array)) return value;
    complaint_.refuse(path_of(name), fmt::format("{} must be a list, not {}.", path_of(name), shown(*value)));
    return nullptr;
}

const Value* Fields::object(std::string_view name) {
    const Value* value = take(name);
    if (value == nullptr || value->is(Type::object)) return value;
    complaint_.refuse(path_of(name),
                      fmt::format("{} must be an object, not {}.", path_of(name), shown(*value)));
    return nullptr;
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) known_.emplace(name);
}

void Fields::neutral(std::string_view name, std::initializer_list<std::string_view> values) {
    const Value* value = take(name);
    if (value == nullptr) return;
    const std::optional<double> number = number_of(*value);
    const std::string json = text::to_json(*value);
    for (const std::string_view accepted : values) {
        if (json == accepted) return;
        if (number && text::is_json_number(accepted) && number_of(text::json_number(accepted)) == number)
            return;
    }
    std::string words;
    for (const std::string_view accepted : values)
        words += (words.empty() ? "" : " or ") + std::string(accepted);
    complaint_.cannot(path_of(name), fmt::format("{} can only be {} here, not {}; leave it out.",
                                                 path_of(name), words, shown(*value)));
}

void Fields::never(std::string_view name, std::string_view why, bool even_empty) {
    const Value* value = take(name);
    if (value == nullptr || (!even_empty && is_empty(*value))) return;
    complaint_.cannot(path_of(name), fmt::format("{} cannot be honoured: {}.", path_of(name), why));
}

void Fields::finish() {
    for (const text::Member& member : object_.as_object()) {
        if (known_.count(member.key) != 0 || member.value.is(Type::null)) continue;
        const std::string key = member.key.size() <= 60 ? member.key : "a field with a very long name";
        complaint_.cannot(path_of(key),
                          fmt::format("There is no field {} here; leave it out.", quote(path_of(key))));
    }
}

}  // namespace dgemma::server
