// Short names for building JSON.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/value.h"

namespace dgemma::server {

using text::Value;

inline Value string(std::string_view text) { return Value::string(std::string(text)); }
inline Value whole(std::int64_t number) { return Value::integer(number); }
inline Value big(std::uint64_t number) { return Value::integer(text::Integer{std::to_string(number)}); }
inline Value boolean(bool value) { return Value::boolean(value); }
inline Value list(Value::Array items = {}) { return Value::array(std::move(items)); }

// One value of a list without a copy: initializer lists cannot be moved from.
inline Value one_of(Value item) {
    Value::Array items;
    items.push_back(std::move(item));
    return Value::array(std::move(items));
}

inline Value object(std::initializer_list<text::Member> members = {}) {
    return Value::object(Value::Object(members));
}

inline bool is(const Value* value, Value::Type type) { return value != nullptr && value->is(type); }
inline bool is_null(const Value* value) { return value == nullptr || value->is(Value::Type::null); }

// The text under `key`; empty where there is none.
inline std::string_view text_at(const Value& object, std::string_view key) {
    const Value* found = object.find(key);
    return is(found, Value::Type::string) ? std::string_view(found->as_string()) : std::string_view();
}

}  // namespace dgemma::server
