#include "base/quote.h"

#include "base/utf8.h"

namespace dgemma {

namespace {

// `c` is one valid character.
bool is_harmless(std::string_view c) {
    const auto lead = static_cast<unsigned char>(c[0]);
    if (c.size() == 1) return lead >= 0x20 && lead != 0x7F;
    const auto second = static_cast<unsigned char>(c[1]);
    if (lead == 0xC2) return second >= 0xA0;  // C1 control characters move a cursor too
    if (lead != 0xE2 || (second != 0x80 && second != 0x81)) return true;
    const unsigned code = (second & 0x3Fu) << 6 | (static_cast<unsigned char>(c[2]) & 0x3Fu) | 0x2000u;
    const bool separator_or_turn = code >= 0x2028 && code <= 0x202E;
    const bool isolate = code >= 0x2066 && code <= 0x2069;
    return !separator_or_turn && !isolate;
}

}  // namespace

std::string quote(std::string_view text) { return "\"" + printable(text) + "\""; }

std::string printable(std::string_view text) {
    constexpr std::size_t longest = 200;
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string out;
    std::size_t taken = 0;
    while (taken < text.size() && taken < longest) {
        const Utf8Unit unit = utf8_unit(text.substr(taken));
        const std::string_view bytes = text.substr(taken, unit.length);
        if (unit.valid && is_harmless(bytes)) {
            out += bytes;
        } else {
            for (const char c : bytes) {
                const auto byte = static_cast<unsigned char>(c);
                out += "\\x";
                out += digits[byte >> 4];
                out += digits[byte & 15];
            }
        }
        taken += unit.length;
    }
    if (taken < text.size()) out += "...";
    return out;
}

}  // namespace dgemma
