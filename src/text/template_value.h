// What a template sees: values as Jinja and Python treat them. A pointer to a Value stands for one; nullptr
// is Jinja's undefined, which is what a lookup of something absent gives.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/value.h"

namespace dgemma::text {

using TemplateValue = const Value*;

// `value[key]`: undefined when value is no object or has no such key. Looking something up in undefined
// itself fails in the templates; callers check for that first.
TemplateValue item_of(TemplateValue value, std::string_view key);

// `value.get(key)` of an object: null, not undefined, when there is no such key.
TemplateValue get_or_null(const Value& object, std::string_view key);

bool is_type(TemplateValue value, Value::Type type);
bool is_string(TemplateValue value, std::string_view text);  // a string equal to `text`

// Jinja's `is sequence`: whatever has a length and can be indexed, which undefined and objects do as well.
bool is_sequence(TemplateValue value);

// Python's bool(): undefined, null, false, zero and everything empty are false.
bool is_true(TemplateValue value);

// Python's str(), as `{{ value }}` prints it: None, True, 1e+16, ['a', 1], {'k': None}; nothing for
// undefined.
std::string text_of(TemplateValue value);

// Python's ==, across types: 1 == 1.0 == True; the order of keys does not matter.
bool python_equal(TemplateValue a, TemplateValue b);

// The items of `for item in value`: those of a list, the characters of a string, the keys of an object, none
// of undefined. Nothing for values that cannot be iterated.
class Items {
  public:
    static std::optional<Items> of(TemplateValue value);

    [[nodiscard]] std::size_t size() const { return made_.empty() ? items_.size() : made_.size(); }
    [[nodiscard]] TemplateValue operator[](std::size_t i) const {
        return made_.empty() ? items_[i] : &made_[i];
    }

  private:
    std::vector<TemplateValue> items_;
    std::vector<Value> made_;  // characters and keys, which are no values of their own yet
};

// The members of an object in the order of Jinja's dictsort: by the lower-cased key, by code point, members
// with equal keys in the order they have (contract/tokenizer.md 3.1).
std::vector<const Member*> sorted_members(const Value& object);

}  // namespace dgemma::text
