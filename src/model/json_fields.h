// A JSON object read key by key, with messages that name the key, its value and what it may be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace dgemma::model {

// Parses the text of a configuration file into an object. Errors: invalid, where it is longer than 16 MB, no
// JSON, no object, or nested deeper than 64 levels. `where` names the file.
Result<nlohmann::json> parse_object(std::string_view text, std::string_view where);

// A view of an object, or of an absent one. An absent key and an explicit null are the same everywhere:
// unset, and then the fallback counts (contract/model.md 1.4).
class JsonFields {
  public:
    // prefix: "" at the top, "text_config." below. object may be null.
    JsonFields(const nlohmann::json* object, std::string where, std::string prefix)
        : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

    // The value of a key, or null where it is unset.
    [[nodiscard]] const nlohmann::json* find(std::string_view key) const;
    [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
    [[nodiscard]] const nlohmann::json* object() const { return object_; }

    // Whole numbers in [least, most]. Without a fallback the key must be set.
    [[nodiscard]] Result<int> integer(std::string_view key, std::optional<int> fallback, int least,
                                      int most) const;
    // One whole number or a list of them in [least, most]; unset gives an empty list.
    [[nodiscard]] Result<std::vector<int>> integers(std::string_view key, int least, int most) const;
    // Numbers above 0 (or from 0 where zero is true) and up to `most`.
    [[nodiscard]] Result<double> number(std::string_view key, double fallback, double most, bool zero) const;
    [[nodiscard]] Result<bool> boolean(std::string_view key, bool fallback) const;
    [[nodiscard]] Result<std::string> text(std::string_view key, std::string_view fallback) const;
    // A nested object; an unset key gives one without keys.
    [[nodiscard]] Result<JsonFields> nested(std::string_view key) const;

    // "In "config.json", text_config.head_dim is 7, but must be <what>; ..." (invalid)
    [[nodiscard]] Error wrong(std::string_view key, std::string_view what) const;
    // "In "config.json", text_config.x is "y", which dgemma cannot run; it runs <what>." (unsupported)
    [[nodiscard]] Error unsupported(std::string_view key, std::string_view what) const;
    // The same for a value inside a list: name "layer_types[3]".
    [[nodiscard]] Error unsupported_item(std::string_view name, const nlohmann::json& item,
                                         std::string_view what) const;

    // A value in a few words, fit for a message.
    static std::string words_for(const nlohmann::json* value);

  private:
    const nlohmann::json* object_;
    std::string where_, prefix_;
};

}  // namespace dgemma::model
