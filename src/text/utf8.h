// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dgemma::text {

bool is_valid_utf8(std::string_view bytes);

// The bytes with every maximal bad subpart (Unicode 15, section 3.9, table 3-8) replaced by one U+FFFD: `E2
// 80` before an `A` gives one, `C0 80` two, an encoded surrogate three. Valid text comes back as it is.
// contract/tokenizer.md 1.6.
std::string sanitize_utf8(std::string_view bytes);

// The code point that starts at `pos`, and moves `pos` behind it. `text` must be valid UTF-8 and pos <
// text.size().
inline char32_t next_code_point(std::string_view text, std::size_t& pos) {
    const auto byte = [&](std::size_t i) -> char32_t { return static_cast<unsigned char>(text[pos + i]); };
    const char32_t lead = byte(0);
    char32_t code = lead;
    std::size_t length = 1;
    if (lead >= 0xF0) {
        code = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
        length = 4;
    } else if (lead >= 0xE0) {
        code = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
        length = 3;
    } else if (lead >= 0xC0) {
        code = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
        length = 2;
    }
    pos += length;
    return code;
}

// Appends the UTF-8 form of `code`; of U+FFFD when `code` is a surrogate or above U+10FFFF.
void append_utf8(std::string& out, char32_t code);

// JSON text with every \u escape of a lone surrogate rewritten to \ufffd (contract/tokenizer.md 1.6). JSON
// parsers refuse such strings whole. Text that is not JSON comes back changed at most in such escapes.
std::string replace_lone_surrogates(std::string_view json);

}  // namespace dgemma::text
