// The lines of tests/data/goldens/chat, as values.
#pragma once

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/shared.h"
#include "text/value.h"

namespace dgemma::text {

inline std::vector<Value> chat_goldens(const std::string& file) {
    std::ifstream in(testing::data_dir() / "goldens" / "chat" / file);
    if (!in) throw std::runtime_error("tests/data/goldens/chat/" + file + " is not there");
    std::vector<Value> rows;
    for (std::string line; std::getline(in, line);) {
        Result<Value> row = parse_json(line, file);
        if (!row) throw std::runtime_error(row.error().message);
        rows.push_back(std::move(row).value());
    }
    return rows;
}

// Equality that minds the types of numbers but not the order of keys.
inline bool same_json(const Value& a, const Value& b) {
    if (a.type() != b.type()) return false;
    if (a.is(Value::Type::array)) {
        return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(), b.as_array().end(),
                          same_json);
    }
    if (a.is(Value::Type::object)) {
        return a.as_object().size() == b.as_object().size() &&
               std::all_of(a.as_object().begin(), a.as_object().end(), [&](const Member& member) {
                   const Value* other = b.find(member.key);
                   return other && same_json(member.value, *other);
               });
    }
    return a == b;
}

}  // namespace dgemma::text
