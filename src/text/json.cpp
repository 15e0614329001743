// JSON text to values and back.
#include <optional>

#include <fmt/format.h>
#include <simdjson.h>

#include "text/utf8.h"
#include "text/value.h"

namespace dgemma::text {

namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view white_space = " \t\n\r";

// Walks a document once, front to back, as simdjson's On-Demand interface wants it. Numbers are taken as they
// are written, which is the reason for this interface: the others keep 64 bits.
class JsonReader {
  public:
    // The sentence of the first thing that was wrong.
    [[nodiscard]] std::string_view problem() const { return problem_; }

    // A document that is a list, an object or a string.
    std::optional<Value> read(ondemand::document& document) {
        ondemand::json_type type{};
        if (!good(document.type().get(type))) return std::nullopt;
        if (type != ondemand::json_type::string) {
            ondemand::value value;
            if (!good(document.get_value().get(value))) return std::nullopt;
            return read(value, type, 1);
        }
        std::string_view text;
        if (!good(document.get_string().get(text))) return std::nullopt;
        return Value::string(std::string(text));
    }

    // A number or one of the three words, as it is written.
    std::optional<Value> scalar(std::string_view token) {
        token = token.substr(0, token.find_last_not_of(white_space) + 1);
        if (token == "null") return Value();
        if (token == "true") return Value::boolean(true);
        if (token == "false") return Value::boolean(false);
        if (is_json_number(token)) return json_number(token);
        problem_ = "a word that is no value (strings need double quotes)";
        return std::nullopt;
    }

  private:
    std::optional<Value> read(ondemand::value value, int depth) {
        ondemand::json_type type{};
        if (!good(value.type().get(type))) return std::nullopt;
        return read(value, type, depth);
    }

    std::optional<Value> read(ondemand::value value, ondemand::json_type type, int depth) {
        switch (type) {
            case ondemand::json_type::array:
                return read_array(value, depth);
            case ondemand::json_type::object:
                return read_object(value, depth);
            case ondemand::json_type::string: {
                std::string_view text;
                if (!good(value.get_string().get(text))) return std::nullopt;
                return Value::string(std::string(text));
            }
            default:
                return scalar(value.raw_json_token());
        }
    }

    std::optional<Value> read_array(ondemand::value value, int depth) {
        if (depth > max_json_depth) return too_deep();
        ondemand::array array;
        if (!good(value.get_array().get(array))) return std::nullopt;
        Value::Array items;
        for (auto element : array) {
            ondemand::value item;
            if (!good(element.get(item))) return std::nullopt;
            std::optional<Value> read_item = read(item, depth + 1);
            if (!read_item) return std::nullopt;
            items.push_back(*std::move(read_item));
        }
        return Value::array(std::move(items));
    }

    std::optional<Value> read_object(ondemand::value value, int depth) {
        if (depth > max_json_depth) return too_deep();
        ondemand::object object;
        if (!good(value.get_object().get(object))) return std::nullopt;
        Value::Object members;
        for (auto entry : object) {
            ondemand::field field;
            if (!good(std::move(entry).get(field))) return std::nullopt;
            std::string_view key;
            if (!good(field.unescaped_key().get(key))) return std::nullopt;
            members.push_back({std::string(key), Value()});
            std::optional<Value> read_value = read(field.value(), depth + 1);
            if (!read_value) return std::nullopt;
            members.back().value = *std::move(read_value);
        }
        return Value::object(std::move(members));
    }

    std::optional<Value> too_deep() {
        problem_ = "lists and objects are nested too deep";
        return std::nullopt;
    }

    bool good(simdjson::error_code code) {
        if (code == simdjson::SUCCESS) return true;
        problem_ = code == simdjson::STRING_ERROR      ? "a broken string or escape"
                   : code == simdjson::EMPTY           ? "nothing is there"
                   : code == simdjson::UNCLOSED_STRING ? "a string has no closing quote"
                   : code == simdjson::INCOMPLETE_ARRAY_OR_OBJECT
                       ? "a bracket or brace is not closed"
                       : "a value, comma, colon or bracket is missing or out of place";
        return false;
    }

    std::string_view problem_;
};

// "line 2, column 7" of a byte; the column alone in a text of one line.
std::string place_of(std::string_view text, std::size_t pos) {
    if (text.find('\n') == std::string_view::npos) return fmt::format("column {}", pos + 1);
    text = text.substr(0, pos);
    const auto line = std::count(text.begin(), text.end(), '\n') + 1;
    const std::size_t start = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
    return fmt::format("line {}, column {}", line, text.size() - start + 1);
}

// Besides what JSON wants escaped, this escapes the characters that some readers take for the end of a line
// (U+0085, U+2028, U+2029), so that a value stays on one line for everyone.
void write_string(std::string& out, std::string_view text) {
    out += '"';
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const std::string_view rest = text.substr(i);
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\r':
                out += "\\r";
                break;
            case '\t':
                out += "\\t";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
                    out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
                } else if (rest.starts_with("\xC2\x85")) {
                    out += "\\u0085";
                    i += 1;
                } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
                    out += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
                    i += 2;
                } else {
                    out += c;
                }
        }
    }
    out += '"';
}

void write(std::string& out, const Value& value) {
    switch (value.type()) {
        case Value::Type::null:
            out += "null";
            break;
        case Value::Type::boolean:
            out += value.as_boolean() ? "true" : "false";
            break;
        case Value::Type::integer:
            out += value.as_integer().digits;
            break;
        case Value::Type::number: {
            const std::string text = float_text(value.as_number());
            out += text == "inf" ? "1e999" : text == "-inf" ? "-1e999" : text;
            break;
        }
        case Value::Type::string:
            write_string(out, value.as_string());
            break;
        case Value::Type::array: {
            out += '[';
            bool first = true;
            for (const Value& item : value.as_array()) {
                if (!first) out += ',';
                first = false;
                write(out, item);
            }
            out += ']';
            break;
        }
        case Value::Type::object: {
            out += '{';
            bool first = true;
            for (const Member& member : value.as_object()) {
                if (!first) out += ',';
                first = false;
                write_string(out, member.key);
                out += ':';
                write(out, member.value);
            }
            out += '}';
            break;
        }
    }
}

}  // namespace

Result<Value> parse_json(std::string_view text, std::string_view where) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    const auto fail = [&](std::string_view problem, std::string_view place) {
        return Error{ErrorKind::invalid, fmt::format("{} is not valid JSON{}{}: {}", where,
                                                     place.empty() ? "" : " at ", place, problem)};
    };
    if (text.find_first_not_of(white_space) == std::string_view::npos) return fail("nothing is there", "");

    const simdjson::padded_string padded(replace_lone_surrogates(sanitize_utf8(text)));
    const std::string_view clean(padded);
    JsonReader reader;
    const std::size_t first = clean.find_first_not_of(white_space);
    if (std::string_view("[{\"").find(clean[first]) == std::string_view::npos) {
        std::optional<Value> value = reader.scalar(clean.substr(first));
        if (!value) return fail(reader.problem(), place_of(clean, first));
        return *std::move(value);
    }

    ondemand::parser parser;
    ondemand::document document;
    const simdjson::error_code started = parser.iterate(padded).get(document);
    if (started == simdjson::UNCLOSED_STRING) return fail("a string has no closing quote", "");
    if (started == simdjson::UNESCAPED_CHARS)
        return fail("a string holds a raw control character: escape it", "");
    if (started != simdjson::SUCCESS) return fail(simdjson::error_message(started), "");

    std::optional<Value> value = reader.read(document);
    const auto here = [&]() -> std::string {
        const char* at = nullptr;
        if (document.current_location().get(at) != simdjson::SUCCESS) return "its end";
        return place_of(clean, static_cast<std::size_t>(at - clean.data()));
    };
    if (!value) return fail(reader.problem(), here());
    const char* rest = nullptr;
    if (document.current_location().get(rest) == simdjson::SUCCESS)
        return fail("more text follows the value", here());
    return *std::move(value);
}

std::string to_json(const Value& value) {
    std::string out;
    write(out, value);
    return out;
}

std::string json_quoted(std::string_view text) {
    std::string out;
    write_string(out, text);
    return out;
}

}  // namespace dgemma::text
