#include "model/json_fields.h"

#include <cmath>
#include <exception>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::model {

using nlohmann::json;

Result<json> parse_object(std::string_view text, std::string_view where) {
    constexpr std::size_t longest = std::size_t{16} << 20;
    constexpr int deepest = 64;
    const auto broken = [&](std::string_view what) {
        return Error{ErrorKind::invalid,
                     fmt::format("The file {} {}; correct it or download it again.", quote(where), what)};
    };
    if (text.size() > longest)
        return broken(fmt::format("has {} bytes, too many for a configuration", text.size()));
    bool too_deep = false;
    std::string last_key;
    // What lies too deep is dropped while parsing, so that hostile nesting costs neither memory nor stack.
    const auto bounded = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > deepest) too_deep = true;
        if (event == json::parse_event_t::key) last_key = parsed.get_ref<const std::string&>();
        return depth <= deepest;
    };
    try {
        json out = json::parse(text.begin(), text.end(), bounded);
        if (too_deep) return broken(fmt::format("is nested deeper than {} levels", deepest));
        if (!out.is_object()) return broken("holds no JSON object");
        return out;
    } catch (const json::parse_error& error) {
        return broken(fmt::format("is no JSON (near byte {})", error.byte));
    } catch (const json::out_of_range&) {  // 1e999
        return broken(fmt::format("has a number under {} that is too large to be one", quote(last_key)));
    } catch (const std::exception&) {
        return broken("cannot be parsed as JSON");
    }
}

const json* JsonFields::find(std::string_view key) const {
    if (object_ == nullptr || !object_->is_object()) return nullptr;
    const auto found = object_->find(key);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::words_for(const json* value) {
    if (value == nullptr) return "not set";
    if (value->is_string()) return quote(value->get_ref<const std::string&>());
    if (value->is_array()) return "a list";
    if (value->is_object()) return "an object";
    return value->dump();
}

Error JsonFields::wrong(std::string_view key, std::string_view what) const {
    return {ErrorKind::invalid,
            fmt::format("In {}, {}{} is {}, but must be {}; correct it or download the file again.",
                        quote(where_), prefix_, key, words_for(find(key)), what)};
}

Error JsonFields::unsupported(std::string_view key, std::string_view what) const {
    const json* value = find(key);
    return unsupported_item(key, value == nullptr ? json() : *value, what);
}

Error JsonFields::unsupported_item(std::string_view name, const json& item, std::string_view what) const {
    return {ErrorKind::unsupported, fmt::format("In {}, {}{} is {}, which dgemma cannot run; it runs {}.",
                                                quote(where_), prefix_, name, words_for(&item), what)};
}

namespace {

std::optional<int> integer_in(const json& value, int least, int most) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned()) {
        const auto n = value.get<std::uint64_t>();
        if (most < 0 || n > static_cast<std::uint64_t>(most)) return std::nullopt;
        return static_cast<int>(n) < least ? std::nullopt : std::optional(static_cast<int>(n));
    }
    const auto n = value.get<std::int64_t>();
    return n < least || n > most ? std::nullopt : std::optional(static_cast<int>(n));
}

}  // namespace

Result<int> JsonFields::integer(std::string_view key, std::optional<int> fallback, int least,
                                int most) const {
    const json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    const auto n = value == nullptr ? std::nullopt : integer_in(*value, least, most);
    if (!n) return wrong(key, fmt::format("a whole number from {} to {}", least, most));
    return *n;
}

Result<std::vector<int>> JsonFields::integers(std::string_view key, int least, int most) const {
    const json* value = find(key);
    std::vector<int> out;
    if (value == nullptr) return out;
    const auto bad = [&] {
        return wrong(key, fmt::format("a whole number from {} to {}, or a list of them", least, most));
    };
    if (!value->is_array()) {
        const auto n = integer_in(*value, least, most);
        if (!n) return bad();
        out.push_back(*n);
        return out;
    }
    for (const json& item : *value) {
        const auto n = integer_in(item, least, most);
        if (!n) return bad();
        out.push_back(*n);
    }
    return out;
}

Result<double> JsonFields::number(std::string_view key, double fallback, double most, bool zero) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    const double n = value->is_number() ? value->get<double>() : std::nan("");
    // Written so that a NaN is refused. 1e-30 keeps what is above 0 above 0 as an f32 too.
    const bool fits = n <= most && (zero ? n >= 0 : n >= 1e-30);
    if (!fits)
        return wrong(key, fmt::format("a number {} and at most {}", zero ? "not below 0" : "above 0", most));
    return n;
}

Result<bool> JsonFields::boolean(std::string_view key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return wrong(key, "true or false");
    return value->get<bool>();
}

Result<std::string> JsonFields::text(std::string_view key, std::string_view fallback) const {
    const json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) return wrong(key, "a string");
    return value->get<std::string>();
}

Result<JsonFields> JsonFields::nested(std::string_view key) const {
    const json* value = find(key);
    if (value != nullptr && !value->is_object()) return wrong(key, "an object");
    return JsonFields(value, where_, fmt::format("{}{}.", prefix_, key));
}

}  // namespace dgemma::model
