// JSON values as messages, tools and tool arguments need them: integers and floats stay apart and exact, and
// objects keep the order of their keys (contract/tokenizer.md 2.1, 3.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace dgemma::text {

// A number written without fraction and exponent, of any size: its decimal digits, a minus before them if it
// is negative. No leading zeros, no "-0".
struct Integer {
    std::string digits = "0";

    friend bool operator==(const Integer&, const Integer&) = default;
};

struct Member;

class Value {
  public:
    enum class Type : std::uint8_t { null, boolean, integer, number, string, array, object };
    using Array = std::vector<Value>;
    using Object = std::vector<Member>;  // no key twice

    Value();  // null
    // Types are named at the call: a bare bool constructor would also take pointers and numbers.
    static Value boolean(bool value);
    static Value integer(std::int64_t value);
    static Value integer(Integer value);
    static Value number(double value);  // not a NaN: JSON has none
    static Value string(std::string value);
    static Value array(Array items);
    // Of members with the same key the last value stays, in the first one's place, as Python's dict has it.
    static Value object(Object members);

    Value(const Value&);
    Value(Value&&) noexcept;
    Value& operator=(const Value&);
    Value& operator=(Value&&) noexcept;
    ~Value();

    [[nodiscard]] Type type() const { return static_cast<Type>(state_.index()); }
    [[nodiscard]] bool is(Type type_asked) const { return type() == type_asked; }

    // Each only for a value of that type.
    [[nodiscard]] bool as_boolean() const { return std::get<bool>(state_); }
    [[nodiscard]] const Integer& as_integer() const { return std::get<Integer>(state_); }
    [[nodiscard]] double as_number() const { return std::get<double>(state_); }
    [[nodiscard]] const std::string& as_string() const { return std::get<std::string>(state_); }
    [[nodiscard]] const Array& as_array() const { return std::get<Array>(state_); }
    [[nodiscard]] const Object& as_object() const { return std::get<Object>(state_); }

    // The value under `key`; nullptr if there is none or this is not an object.
    [[nodiscard]] const Value* find(std::string_view key) const;

    // Of an object: replaces the value under `key`, or adds it at the end; takes it away.
    void set(std::string_view key, Value value);
    void remove(std::string_view key);

    // As written down: 1 and 1.0 differ, and so do objects with the same members in another order.
    friend bool operator==(const Value& a, const Value& b);

  private:
    std::variant<std::monostate, bool, Integer, double, std::string, Array, Object> state_;
};

struct Member {
    std::string key;
    Value value;

    friend bool operator==(const Member&, const Member&) = default;
};

// "null", "a boolean", "an integer", ...: for messages.
std::string_view describe(Value::Type type);

// Arrays and objects deeper than this are refused: everything that walks a value recurses.
inline constexpr int max_json_depth = 512;

// Reads one JSON value. Bytes that are not UTF-8, and escaped lone surrogates, become U+FFFD
// (contract/tokenizer.md 1.6); a byte order mark at the start is skipped. A number with a fraction or an
// exponent is a double (infinite when too large, as Python reads it), any other an Integer. `where` names the
// text in messages: "line 3", "tools.json". Errors: invalid, with the line and the column.
Result<Value> parse_json(std::string_view text, std::string_view where);

// JSON on one line without spaces, in UTF-8 (Unicode line separators escaped). Integers exactly, floats by
// the shortest digits that read back the same, infinities as numbers too large for a double.
std::string to_json(const Value& value);

// A text as a JSON string, quotes included.
std::string json_quoted(std::string_view text);

// A float as Python's repr and JSON both write it: shortest digits that read back the same, `.0` if integral,
// an exponent of at least two digits if it is below -4 or at least 16 (contract/tokenizer.md 3.1). Infinities
// are "inf".
std::string float_text(double value);

// Whether `text` is a whole JSON number, and then the value it has.
bool is_json_number(std::string_view text);
Value json_number(std::string_view text);

}  // namespace dgemma::text
