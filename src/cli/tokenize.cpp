#include "cli/tokenize.h"

#include <charconv>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "cli/json_lines.h"

namespace dgemma::cli {

namespace {

using text::Value;

Result<std::string> ids_line(const text::Tokenizer& tokenizer, text::Specials specials, const Value& line) {
    const Value* text = line.find("text");
    if (!text || !text->is(Value::Type::string)) {
        return Error{ErrorKind::invalid, "has no `text`: give it the text to encode, as a string"};
    }
    return fmt::format("{{\"ids\":[{}]}}", fmt::join(tokenizer.encode(text->as_string(), specials), ","));
}

// Ids too large for a token's become one that no token has.
std::int32_t id_of(const text::Integer& integer) {
    std::int32_t id = 0;
    const char* end = integer.digits.data() + integer.digits.size();
    return std::from_chars(integer.digits.data(), end, id).ec == std::errc() ? id : -1;
}

Result<std::string> text_line(const text::Tokenizer& tokenizer, bool skip_special, const Value& line) {
    const Value* ids = line.find("ids");
    if (!ids || !ids->is(Value::Type::array)) {
        return Error{ErrorKind::invalid, "has no `ids`: give it the list of ids to decode"};
    }
    std::vector<std::int32_t> known;
    known.reserve(ids->as_array().size());
    for (const Value& id : ids->as_array()) {
        if (!id.is(Value::Type::integer)) {
            return Error{ErrorKind::invalid,
                         fmt::format("has {} among its `ids`: ids are integers", describe(id.type()))};
        }
        known.push_back(id_of(id.as_integer()));
    }
    return fmt::format("{{\"text\":{}}}", text::json_quoted(tokenizer.decode(known, skip_special)));
}

}  // namespace

Status tokenize_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& options, std::istream& in,
                      std::ostream& out) {
    const auto specials = options.no_special ? text::Specials::as_text : text::Specials::parse;
    return for_each_json_line(in, out, [&](const Value& line) {
        return options.decode ? text_line(tokenizer, options.skip_special, line)
                              : ids_line(tokenizer, specials, line);
    });
}

}  // namespace dgemma::cli
