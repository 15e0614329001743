#include "text/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

namespace dgemma::text {

Value::Value() = default;
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

Value Value::boolean(bool value) {
    Value out;
    out.state_ = value;
    return out;
}

Value Value::integer(std::int64_t value) { return integer(Integer{std::to_string(value)}); }

Value Value::integer(Integer value) {
    Value out;
    out.state_ = std::move(value);
    return out;
}

Value Value::number(double value) {
    Value out;
    out.state_ = value;
    return out;
}

Value Value::string(std::string value) {
    Value out;
    out.state_ = std::move(value);
    return out;
}

Value Value::array(Array items) {
    Value out;
    out.state_ = std::move(items);
    return out;
}

Value Value::object(Object members) {
    // A table of the keys pays from a few members on, and keeps hostile objects from costing quadratic time.
    Object unique;
    unique.reserve(members.size());
    std::unordered_map<std::string, std::size_t> places;
    for (Member& member : members) {
        const auto [place, added] = places.try_emplace(member.key, unique.size());
        if (added)
            unique.push_back(std::move(member));
        else
            unique[place->second].value = std::move(member.value);
    }
    Value out;
    out.state_ = std::move(unique);
    return out;
}

const Value* Value::find(std::string_view key) const {
    if (!is(Type::object)) return nullptr;
    for (const Member& member : as_object())
        if (member.key == key) return &member.value;
    return nullptr;
}

void Value::set(std::string_view key, Value value) {
    Object& members = std::get<Object>(state_);
    for (Member& member : members) {
        if (member.key == key) {
            member.value = std::move(value);
            return;
        }
    }
    members.push_back({std::string(key), std::move(value)});
}

void Value::remove(std::string_view key) {
    std::erase_if(std::get<Object>(state_), [&](const Member& member) { return member.key == key; });
}

bool operator==(const Value& a, const Value& b) { return a.state_ == b.state_; }

std::string_view describe(Value::Type type) {
    switch (type) {
        case Value::Type::null:
            return "null";
        case Value::Type::boolean:
            return "a boolean";
        case Value::Type::integer:
            return "an integer";
        case Value::Type::number:
            return "a number";
        case Value::Type::string:
            return "a string";
        case Value::Type::array:
            return "a list";
        case Value::Type::object:
            return "an object";
    }
    return "?";
}

std::string float_text(double value) {
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::array<char, 40> buffer;
    const auto end =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
    std::string_view text(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));

    std::string out;
    if (text.front() == '-') {
        out = "-";
        text.remove_prefix(1);
    }
    const std::size_t e = text.find('e');
    std::string digits(text.substr(0, e));
    std::erase(digits, '.');
    const bool negative = text[e + 1] == '-';
    int exponent = 0;
    std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
    if (negative) exponent = -exponent;

    // Digits before the decimal point; those that are missing are zeros.
    const auto whole = static_cast<std::size_t>(std::clamp(exponent + 1, 0, 16));
    if (exponent < -4 || exponent >= 16) {
        out += digits[0];
        if (digits.size() > 1) out.append(".").append(digits, 1);
        out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
    } else if (exponent < 0) {
        constexpr std::string_view zeros = "000";
        out.append("0.")
            .append(zeros.substr(zeros.size() + 1 - static_cast<std::size_t>(-exponent)))
            .append(digits);
    } else if (digits.size() <= whole) {
        out.append(digits).append(whole - digits.size(), '0').append(".0");
    } else {
        out.append(digits, 0, whole).append(".").append(digits, whole);
    }
    return out;
}

bool is_json_number(std::string_view text) {
    std::size_t pos = 0;
    const auto digits = [&] {
        const std::size_t start = pos;
        while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') ++pos;
        return pos - start;
    };
    if (pos < text.size() && text[pos] == '-') ++pos;
    const std::size_t first = pos;
    const std::size_t whole = digits();
    if (whole == 0 || (whole > 1 && text[first] == '0')) return false;
    if (pos < text.size() && text[pos] == '.') {
        ++pos;
        if (digits() == 0) return false;
    }
    if (pos < text.size() && (text[pos] == 'e' || text[pos] == 'E')) {
        ++pos;
        if (pos < text.size() && (text[pos] == '+' || text[pos] == '-')) ++pos;
        if (digits() == 0) return false;
    }
    return pos == text.size();
}

namespace {

// Whether the first digit that counts stands before the decimal point once the exponent is applied. Decides
// between infinity and zero for numbers that from_chars finds out of range.
bool is_large(std::string_view text) {
    const std::size_t e = std::min(text.find_first_of("eE"), text.size());
    const std::string_view mantissa = text.substr(0, e);
    const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
    const std::size_t first = std::min(mantissa.find_first_of("123456789"), mantissa.size());
    double exponent =
        first < point ? static_cast<double>(point - first) : -static_cast<double>(first - point);
    if (e < text.size()) {
        std::string_view digits = text.substr(e + 1);
        const bool negative = digits.front() == '-';
        if (negative || digits.front() == '+') digits.remove_prefix(1);
        double written = 0;
        for (const char c : digits) written = std::min(written * 10 + (c - '0'), 1e18);
        exponent += negative ? -written : written;
    }
    return exponent > 0;
}

}  // namespace

Value json_number(std::string_view text) {
    if (text.find_first_of(".eE") == std::string_view::npos)
        return Value::integer(Integer{text == "-0" ? "0" : std::string(text)});
    double value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range) {
        value = is_large(text) ? std::numeric_limits<double>::infinity() : 0.0;
        if (text.front() == '-') value = -value;
    }
    return Value::number(value);
}

}  // namespace dgemma::text
