#include "text/detokenizer.h"

#include <string_view>
#include <utility>

#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

// A whole run of byte tokens: its text if it is valid, else one U+FFFD for every byte, good ones included.
void append_byte_run(std::string& out, std::string_view bytes) {
    if (is_valid_utf8(bytes)) {
        out += bytes;
        return;
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) append_utf8(out, 0xFFFD);
}

void append_with_spaces(std::string& out, std::string_view token) {
    while (true) {
        const std::size_t mark = token.find(kSpaceMarkUtf8);
        out += token.substr(0, mark);
        if (mark == std::string_view::npos) return;
        out += ' ';
        token.remove_prefix(mark + kSpaceMarkUtf8.size());
    }
}

}  // namespace

std::string Detokenizer::push(std::span<const std::int32_t> ids) {
    using Kind = TokenizerTables::Kind;
    const TokenizerTables& tables = *tokenizer_.tables_;
    std::string out;
    for (const std::int32_t id : ids) {
        if (id < 0 || static_cast<std::size_t>(id) >= tables.tokens.size()) continue;
        const auto& facts = tables.tokens[static_cast<std::size_t>(id)];
        if (facts.special && skip_special_) continue;
        if (facts.kind == Kind::byte) {
            bytes_ += static_cast<char>(facts.byte);
            continue;
        }
        if (!bytes_.empty()) append_byte_run(out, std::exchange(bytes_, {}));
        if (facts.kind == Kind::with_space_mark) {
            append_with_spaces(out, tables.vocabulary.token(id));
        } else {
            out += tables.vocabulary.token(id);
        }
    }
    return out;
}

std::string Detokenizer::flush() {
    std::string out;
    append_byte_run(out, std::exchange(bytes_, {}));
    return out;
}

}  // namespace dgemma::text
