#include "text/python_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/utf8.h"

namespace dgemma::text {

namespace {

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Characters whose upper case is longer than one character (Unicode's SpecialCasing table), but for the 48
// Greek letters with iota from U+1F80, which follow a rule. Ordered by the letter.
struct LongUpper {
    char32_t letter;
    std::u32string_view upper;
};
constexpr std::array<LongUpper, 54> long_uppers = {{
    {0x00DF, U"SS"},
    {0x0149, U"\u02BCN"},
    {0x01F0, U"J\u030C"},
    {0x0390, U"\u0399\u0308\u0301"},
    {0x03B0, U"\u03A5\u0308\u0301"},
    {0x0587, U"\u0535\u0552"},
    {0x1E96, U"H\u0331"},
    {0x1E97, U"T\u0308"},
    {0x1E98, U"W\u030A"},
    {0x1E99, U"Y\u030A"},
    {0x1E9A, U"A\u02BE"},
    {0x1F50, U"\u03A5\u0313"},
    {0x1F52, U"\u03A5\u0313\u0300"},
    {0x1F54, U"\u03A5\u0313\u0301"},
    {0x1F56, U"\u03A5\u0313\u0342"},
    {0x1FB2, U"\u1FBA\u0399"},
    {0x1FB3, U"\u0391\u0399"},
    {0x1FB4, U"\u0386\u0399"},
    {0x1FB6, U"\u0391\u0342"},
    {0x1FB7, U"\u0391\u0342\u0399"},
    {0x1FBC, U"\u0391\u0399"},
    {0x1FC2, U"\u1FCA\u0399"},
    {0x1FC3, U"\u0397\u0399"},
    {0x1FC4, U"\u0389\u0399"},
    {0x1FC6, U"\u0397\u0342"},
    {0x1FC7, U"\u0397\u0342\u0399"},
    {0x1FCC, U"\u0397\u0399"},
    {0x1FD2, U"\u0399\u0308\u0300"},
    {0x1FD3, U"\u0399\u0308\u0301"},
    {0x1FD6, U"\u0399\u0342"},
    {0x1FD7, U"\u0399\u0308\u0342"},
    {0x1FE2, U"\u03A5\u0308\u0300"},
    {0x1FE3, U"\u03A5\u0308\u0301"},
    {0x1FE4, U"\u03A1\u0313"},
    {0x1FE6, U"\u03A5\u0342"},
    {0x1FE7, U"\u03A5\u0308\u0342"},
    {0x1FF2, U"\u1FFA\u0399"},
    {0x1FF3, U"\u03A9\u0399"},
    {0x1FF4, U"\u038F\u0399"},
    {0x1FF6, U"\u03A9\u0342"},
    {0x1FF7, U"\u03A9\u0342\u0399"},
    {0x1FFC, U"\u03A9\u0399"},
    {0xFB00, U"FF"},
    {0xFB01, U"FI"},
    {0xFB02, U"FL"},
    {0xFB03, U"FFI"},
    {0xFB04, U"FFL"},
    {0xFB05, U"ST"},
    {0xFB06, U"ST"},
    {0xFB13, U"\u0544\u0546"},
    {0xFB14, U"\u0544\u0535"},
    {0xFB15, U"\u0544\u053B"},
    {0xFB16, U"\u054E\u0546"},
    {0xFB17, U"\u0544\u053D"},
}};

bool within(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

// Unicode's Cased property, for characters that are not case-ignorable.
bool is_cased(char32_t c) {
    switch (category_of(c)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
            return true;
        default:
            return c == 0xAA || c == 0xBA || within(c, 0x2160, 0x217F) || within(c, 0x24B6, 0x24E9) ||
                   within(c, 0x1F130, 0x1F149) || within(c, 0x1F150, 0x1F169) || within(c, 0x1F170, 0x1F189);
    }
}

// Unicode's Case_Ignorable property: marks, modifiers, and the punctuation that occurs inside words.
bool is_case_ignorable(char32_t c) {
    switch (category_of(c)) {
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_SK:
            return true;
        default:
            return std::u32string_view(
                       U"'.:"
                       U"\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E"
                       U"\uFF1A")
                       .find(c) != std::u32string_view::npos;
    }
}

std::u32string characters_of(std::string_view text) {
    std::u32string out;
    out.reserve(text.size());
    for (std::size_t pos = 0; pos < text.size();) out += next_code_point(text, pos);
    return out;
}

// Whether the capital sigma at `i` ends a word: a cased letter before it and none after, ignorable ones
// aside.
bool is_final_sigma(std::u32string_view text, std::size_t i) {
    const auto before =
        std::find_if_not(std::make_reverse_iterator(text.begin() + static_cast<std::ptrdiff_t>(i)),
                         text.rend(), is_case_ignorable);
    if (before == text.rend() || !is_cased(*before)) return false;
    const auto after =
        std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(i) + 1, text.end(), is_case_ignorable);
    return after == text.end() || !is_cased(*after);
}

bool is_printable(char32_t c) {
    switch (category_of(c)) {
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return false;
        case UTF8PROC_CATEGORY_ZS:
            return c == ' ';
        default:
            return true;
    }
}

}  // namespace

std::string_view python_strip(std::string_view text) {
    while (!text.empty()) {
        std::size_t end = 0;
        if (!is_white_space(next_code_point(text, end))) break;
        text.remove_prefix(end);
    }
    while (!text.empty()) {
        std::size_t start = text.size() - 1;
        while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
        std::size_t end = start;
        if (!is_white_space(next_code_point(text, end))) break;
        text = text.substr(0, start);
    }
    return text;
}

std::string python_upper(std::string_view text) {
    std::string out;
    for (std::size_t pos = 0; pos < text.size();) {
        const char32_t c = next_code_point(text, pos);
        if (within(c, 0x1F80, 0x1FAF)) {
            append_utf8(out, (c < 0x1F90 ? 0x1F08 : c < 0x1FA0 ? 0x1F28 : 0x1F68) + (c & 7));
            append_utf8(out, 0x399);
            continue;
        }
        const auto* place =
            std::lower_bound(long_uppers.begin(), long_uppers.end(), c,
                             [](const LongUpper& entry, char32_t letter) { return entry.letter < letter; });
        if (place != long_uppers.end() && place->letter == c) {
            for (const char32_t upper : place->upper) append_utf8(out, upper);
        } else {
            append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
        }
    }
    return out;
}

std::string python_lower(std::string_view text) {
    const std::u32string characters = characters_of(text);
    std::string out;
    for (std::size_t i = 0; i < characters.size(); ++i) {
        const char32_t c = characters[i];
        if (c == 0x3A3)
            append_utf8(out, is_final_sigma(characters, i) ? 0x3C2 : 0x3C3);
        else if (c == 0x130)
            out += "i\xCC\x87";  // the only letter whose lower case is two characters
        else
            append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
    return out;
}

std::string python_repr(std::string_view text) {
    const bool double_quotes =
        text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
    const char quote = double_quotes ? '"' : '\'';
    std::string out(1, quote);
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t start = pos;
        const char32_t c = next_code_point(text, pos);
        if (c == '\\' || c == static_cast<unsigned char>(quote))
            out.append("\\").append(text, start, pos - start);
        else if (c == '\t')
            out += "\\t";
        else if (c == '\n')
            out += "\\n";
        else if (c == '\r')
            out += "\\r";
        else if (is_printable(c))
            out.append(text, start, pos - start);
        else if (c <= 0xFF)
            out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
        else if (c <= 0xFFFF)
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
    }
    out += quote;
    return out;
}

}  // namespace dgemma::text
