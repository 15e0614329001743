#include "cli/words.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/utf8.h"

namespace dgemma::cli {

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
        const Utf8Unit unit = utf8_unit(text.substr(at));
        if (!unit.valid) return at;
        at += unit.length;
    }
    return std::nullopt;
}

std::string bytes_text(std::uint64_t bytes) {
    static constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string counted(std::uint64_t number, std::string_view noun) {
    return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string with_commas(std::uint64_t number) {
    std::string digits = std::to_string(number);
    for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), ",");
    return digits;
}

}  // namespace dgemma::cli
