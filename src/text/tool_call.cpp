#include "text/tool_call.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace dgemma::text {

namespace {

constexpr std::string_view spaces = " \n\t\r";

std::string_view trim(std::string_view text) {
    const std::size_t first = text.find_first_not_of(spaces);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

Error broken(std::string_view reason) { return Error{ErrorKind::invalid, std::string(reason)}; }

// Reads arguments front to back. It counts characters, not tokens: tokens such as `}}` exist.
class ArgumentScanner {
  public:
    explicit ArgumentScanner(std::string_view text) : text_(text) {}

    // From behind the opening brace to behind the closing one.
    Result<Value> object(int depth) {
        if (depth > max_json_depth) return broken("the arguments are nested too deep");
        Value::Object members;
        while (true) {
            skip(" \n\t\r,");
            if (take('}')) return Value::object(std::move(members));
            DGEMMA_TRY(std::string key, this->key());
            DGEMMA_TRY(Value value, this->value(depth));
            members.push_back({std::move(key), std::move(value)});
        }
    }

    [[nodiscard]] bool only_spaces_left() const {
        return text_.find_first_not_of(spaces, pos_) == std::string_view::npos;
    }

  private:
    Result<Value> array(int depth) {
        if (depth > max_json_depth) return broken("the arguments are nested too deep");
        Value::Array items;
        while (true) {
            skip(" \n\t\r,");
            if (take(']')) return Value::array(std::move(items));
            if (peek('}')) return broken("a list is closed by a brace");
            DGEMMA_TRY(Value item, value(depth));
            items.push_back(std::move(item));
        }
    }

    // Up to and with the colon.
    Result<std::string> key() {
        if (take(quote_byte)) {
            DGEMMA_TRY(std::string quoted, rest_of_quoted());
            skip(spaces);
            if (!take(':')) return broken("a key has no colon after it");
            return quoted;
        }
        const std::size_t end = text_.find(':', pos_);
        if (end == std::string_view::npos) return broken("a key has no colon after it");
        const std::string_view key = trim(text_.substr(pos_, end - pos_));
        if (key.find_first_of(std::string_view{",{}\xFF"}) != std::string_view::npos ||
            key.starts_with('[') || key.starts_with(']'))
            return broken("a key holds a comma, a brace or a quote marker");
        pos_ = end + 1;
        return std::string(key);
    }

    Result<Value> value(int depth) {
        skip(spaces);
        if (take(quote_byte)) {
            DGEMMA_TRY(std::string quoted, rest_of_quoted());
            return Value::string(std::move(quoted));
        }
        if (take('{')) return object(depth + 1);
        if (take('[')) return array(depth + 1);
        const std::size_t end = text_.find_first_of(std::string_view{",}]\xFF"}, pos_);
        if (end == std::string_view::npos) return broken("the arguments are not closed");
        if (text_[end] == quote_byte) return broken("a quote marker stands within a value");
        const std::string_view word = trim(text_.substr(pos_, end - pos_));
        pos_ = end;
        if (word == "true" || word == "false") return Value::boolean(word == "true");
        if (word == "null" || word == "None") return Value();
        if (is_json_number(word)) return json_number(word);
        return Value::string(std::string(word));
    }

    Result<std::string> rest_of_quoted() {
        const std::size_t end = text_.find(quote_byte, pos_);
        if (end == std::string_view::npos) return broken("a string has no closing quote marker");
        std::string quoted(text_.substr(pos_, end - pos_));
        pos_ = end + 1;
        return quoted;
    }

    void skip(std::string_view characters) {
        while (pos_ < text_.size() && characters.find(text_[pos_]) != std::string_view::npos) ++pos_;
    }

    [[nodiscard]] bool peek(char c) const { return pos_ < text_.size() && text_[pos_] == c; }

    bool take(char c) {
        if (!peek(c)) return false;
        ++pos_;
        return true;
    }

    std::string_view text_;
    std::size_t pos_ = 0;
};

}  // namespace

bool can_be_called(std::string_view name) {
    return !name.empty() && trim(name) == name && name.find_first_of("{}") == std::string_view::npos;
}

Result<ToolCall> parse_tool_call(std::string_view body) {
    constexpr std::string_view opening = "call:";
    body = body.substr(std::min(body.find_first_not_of(spaces), body.size()));
    if (!body.starts_with(opening)) return broken("the call does not begin with `call:`");
    body.remove_prefix(opening.size());
    const std::size_t brace = body.find('{');
    if (brace == std::string_view::npos) return broken("the call has no arguments in braces");
    const std::string_view name = trim(body.substr(0, brace));
    if (name.empty()) return broken("the call has no name");
    if (name.find_first_of(std::string_view{"}\xFF"}) != std::string_view::npos)
        return broken("the name of the call holds a brace or a quote marker");

    ArgumentScanner scanner(body.substr(brace + 1));
    DGEMMA_TRY(Value arguments, scanner.object(1));
    if (!scanner.only_spaces_left()) return broken("text follows the arguments of the call");
    return ToolCall{std::string(name), std::move(arguments)};
}

}  // namespace dgemma::text
