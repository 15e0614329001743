#include "server/sealed_thought.h"

#include <cstdint>

#include "text/utf8.h"

namespace dgemma::server {

namespace {

constexpr std::string_view mark = "dgemma1:";
constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

std::string sealed_thought(std::string_view text) {
    std::string out(mark);
    std::uint32_t bits = 0;
    int held = 0;
    for (const char c : text) {
        bits = (bits << 8 | static_cast<unsigned char>(c)) & 0xFFFFFF;
        for (held += 8; held >= 6; held -= 6) out += digits[bits >> (held - 6) & 63];
    }
    if (held > 0) out += digits[bits << (6 - held) & 63];
    return out;
}

std::string thought_of(std::string_view sealed) {
    if (!sealed.starts_with(mark)) return {};
    std::string out;
    std::uint32_t bits = 0;
    int held = 0;
    for (const char c : sealed.substr(mark.size())) {
        const std::size_t digit = digits.find(c);
        if (digit == std::string_view::npos) return {};
        bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xFFFFFF;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        out += static_cast<char>(bits >> held & 0xFF);
    }
    return text::sanitize_utf8(out);
}

}  // namespace dgemma::server
