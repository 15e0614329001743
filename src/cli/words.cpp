#include "cli/words.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "text/utf8.h"

namespace dgemma::cli {

namespace {

// Bytes of the UTF-8 character at the start of `text`, 0 when there is none.
std::size_t character_length(std::string_view text) {
    for (std::size_t length = 1; length <= 4 && length <= text.size(); ++length) {
        if (text::is_valid_utf8(text.substr(0, length))) return length;
    }
    return 0;
}

}  // namespace

std::string in_quotes(std::string_view text) {
    constexpr std::size_t limit = 60;
    std::string out = "\"";
    while (!text.empty()) {
        if (out.size() > limit) {
            out += "...";
            break;
        }
        const std::size_t length = character_length(text);
        const auto lead = static_cast<unsigned char>(text[0]);
        // C1 control characters are two bytes long and move a terminal's cursor too.
        const bool c1 = length == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
        if (length == 0 || lead < 0x20 || lead == 0x7F || c1) {
            out += fmt::format("\\x{:02X}", lead);
            text.remove_prefix(1);
        } else {
            out += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return out + "\"";
}

std::optional<std::uint64_t> read_whole(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<double> read_real(std::string_view text) {
    double value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (!std::isfinite(value)) return std::nullopt;
    return value;
}

std::optional<bool> read_toggle(std::string_view text) {
    if (text == "1" || text == "yes" || text == "true" || text == "on") return true;
    if (text == "0" || text == "no" || text == "false" || text == "off") return false;
    return std::nullopt;
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t length = character_length(text.substr(at));
        if (length == 0) return at;
        at += length;
    }
    return std::nullopt;
}

std::string bytes_text(std::uint64_t bytes) {
    static constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string with_commas(std::uint64_t number) {
    std::string digits = std::to_string(number);
    for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), ",");
    return digits;
}

}  // namespace dgemma::cli
