// Where a character of UTF-8 ends, and whether it is one: RFC 3629, so no overlong forms, no surrogates and
// nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace dgemma {

struct Utf8Unit {
    std::size_t length = 1;  // in bytes
    bool valid = false;
};

// What bytes that are not empty begin with: a character, or a maximal bad subpart (Unicode 15, section 3.9,
// table 3-8).
constexpr Utf8Unit utf8_unit(std::string_view bytes) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned lead = byte(0);
    if (lead < 0x80) return {1, true};
    if (lead < 0xC2 || lead > 0xF4) return {1, false};  // a continuation byte, an overlong form, or too large
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte carries the rest of the rules: overlong forms, surrogates, the end of Unicode.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (bytes.size() < 2 || byte(1) < low || byte(1) > high) return {1, false};
    for (std::size_t i = 2; i < length; ++i) {
        if (i >= bytes.size() || (byte(i) & 0xC0) != 0x80) return {i, false};
    }
    return {length, true};
}

}  // namespace dgemma
