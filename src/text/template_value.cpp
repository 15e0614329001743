#include "text/template_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "text/python_text.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

using Type = Value::Type;

const Value null_value;

void append_repr(std::string& out, const Value& value);

// str() of a value that is no string, which is its repr().
void append_text(std::string& out, const Value& value) {
    switch (value.type()) {
        case Type::null:
            out += "None";
            break;
        case Type::boolean:
            out += value.as_boolean() ? "True" : "False";
            break;
        case Type::integer:
            out += value.as_integer().digits;
            break;
        case Type::number:
            out += float_text(value.as_number());
            break;
        case Type::string:
            out += value.as_string();
            break;
        case Type::array: {
            out += '[';
            std::string_view separator;
            for (const Value& item : value.as_array()) {
                out += std::exchange(separator, ", ");
                append_repr(out, item);
            }
            out += ']';
            break;
        }
        case Type::object: {
            out += '{';
            std::string_view separator;
            for (const Member& member : value.as_object()) {
                out += std::exchange(separator, ", ");
                out += python_repr(member.key);
                out += ": ";
                append_repr(out, member.value);
            }
            out += '}';
            break;
        }
    }
}

void append_repr(std::string& out, const Value& value) {
    if (value.is(Type::string))
        out += python_repr(value.as_string());
    else
        append_text(out, value);
}

// The digits of a boolean, an integer or an integral float; nothing for other values.
std::optional<std::string> whole_number(const Value& value) {
    switch (value.type()) {
        case Type::boolean:
            return value.as_boolean() ? "1" : "0";
        case Type::integer:
            return value.as_integer().digits;
        case Type::number: {
            const double number = value.as_number();
            if (!std::isfinite(number) || number != std::floor(number)) return std::nullopt;
            std::array<char, 320> digits;  // every integral double fits
            const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number + 0.0,
                                           std::chars_format::fixed, 0);
            return std::string(digits.data(), end.ptr);
        }
        default:
            return std::nullopt;
    }
}

bool is_numeric(Type type) { return type == Type::boolean || type == Type::integer || type == Type::number; }

}  // namespace

TemplateValue item_of(TemplateValue value, std::string_view key) {
    return value ? value->find(key) : nullptr;
}

TemplateValue get_or_null(const Value& object, std::string_view key) {
    const Value* found = object.find(key);
    return found ? found : &null_value;
}

bool is_type(TemplateValue value, Type type) { return value && value->is(type); }

bool is_string(TemplateValue value, std::string_view text) {
    return is_type(value, Type::string) && value->as_string() == text;
}

bool is_sequence(TemplateValue value) {
    return !value || value->is(Type::string) || value->is(Type::array) || value->is(Type::object);
}

bool is_true(TemplateValue value) {
    if (!value) return false;
    switch (value->type()) {
        case Type::null:
            return false;
        case Type::boolean:
            return value->as_boolean();
        case Type::integer:
            return value->as_integer().digits != "0";
        case Type::number:
            return value->as_number() != 0;
        case Type::string:
            return !value->as_string().empty();
        case Type::array:
            return !value->as_array().empty();
        case Type::object:
            return !value->as_object().empty();
    }
    return false;
}

std::string text_of(TemplateValue value) {
    std::string out;
    if (value) append_text(out, *value);
    return out;
}

bool python_equal(TemplateValue a, TemplateValue b) {
    if (!a || !b) return a == b;
    if (is_numeric(a->type()) && is_numeric(b->type())) {
        if (a->is(Type::number) && b->is(Type::number)) return a->as_number() == b->as_number();
        const std::optional<std::string> left = whole_number(*a), right = whole_number(*b);
        return left && right && *left == *right;
    }
    if (a->type() != b->type()) return false;
    switch (a->type()) {
        case Type::string:
            return a->as_string() == b->as_string();
        case Type::array:
            return std::equal(a->as_array().begin(), a->as_array().end(), b->as_array().begin(),
                              b->as_array().end(),
                              [](const Value& x, const Value& y) { return python_equal(&x, &y); });
        case Type::object:
            return a->as_object().size() == b->as_object().size() &&
                   std::all_of(a->as_object().begin(), a->as_object().end(), [&](const Member& member) {
                       const Value* other = b->find(member.key);
                       return other && python_equal(&member.value, other);
                   });
        default:
            return true;  // null
    }
}

std::optional<Items> Items::of(TemplateValue value) {
    Items out;
    if (!value) return out;
    switch (value->type()) {
        case Type::array:
            out.items_.reserve(value->as_array().size());
            for (const Value& item : value->as_array()) out.items_.push_back(&item);
            return out;
        case Type::string:
            for (std::size_t pos = 0; pos < value->as_string().size();) {
                const std::size_t start = pos;
                next_code_point(value->as_string(), pos);
                out.made_.push_back(Value::string(value->as_string().substr(start, pos - start)));
            }
            return out;
        case Type::object:
            for (const Member& member : value->as_object()) out.made_.push_back(Value::string(member.key));
            return out;
        default:
            return std::nullopt;
    }
}

std::vector<const Member*> sorted_members(const Value& object) {
    std::vector<std::pair<std::string, const Member*>> keyed;
    keyed.reserve(object.as_object().size());
    for (const Member& member : object.as_object()) keyed.emplace_back(python_lower(member.key), &member);
    std::stable_sort(keyed.begin(), keyed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<const Member*> out;
    out.reserve(keyed.size());
    for (const auto& [key, member] : keyed) out.push_back(member);
    return out;
}

}  // namespace dgemma::text
