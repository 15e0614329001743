#include "text/utf8.h"

#include <cstdint>

#include <simdjson.h>

#include "base/utf8.h"

namespace dgemma::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The value of a `\uXXXX` escape at `pos`, or -1.
int escape_at(std::string_view json, std::size_t pos) {
    if (pos + 6 > json.size() || json[pos] != '\\' || json[pos + 1] != 'u') return -1;
    int value = 0;
    for (std::size_t i = pos + 2; i < pos + 6; ++i) {
        const char c = json[i];
        int digit = 0;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) { return simdjson::validate_utf8(bytes.data(), bytes.size()); }

std::string sanitize_utf8(std::string_view bytes) {
    if (is_valid_utf8(bytes)) return std::string(bytes);
    std::string out;
    out.reserve(bytes.size() + bytes.size() / 8);
    while (!bytes.empty()) {
        const Utf8Unit unit = utf8_unit(bytes);
        out += unit.valid ? bytes.substr(0, unit.length) : kReplacement;
        bytes.remove_prefix(unit.length);
    }
    return out;
}

void append_utf8(std::string& out, char32_t code) {
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = 0xFFFD;
    const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | code >> 6);
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | code >> 12);
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3F));
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

std::string replace_lone_surrogates(std::string_view json) {
    std::string out(json);
    for (std::size_t pos = out.find('\\'); pos != std::string::npos; pos = out.find('\\', pos)) {
        const int value = escape_at(out, pos);
        if (value < 0) {
            pos += 2;  // another escape, `\\` above all
        } else if (value < 0xD800 || value > 0xDFFF) {
            pos += 6;
        } else if (const int next = escape_at(out, pos + 6);
                   value < 0xDC00 && next >= 0xDC00 && next <= 0xDFFF) {
            pos += 12;
        } else {
            out.replace(pos + 2, 4, "fffd");
            pos += 6;
        }
        if (pos >= out.size()) break;
    }
    return out;
}

}  // namespace dgemma::text
