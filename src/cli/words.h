// Numbers read strictly and written for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dgemma::cli {

// A whole decimal number of at most 64 bits and nothing around it; no sign.
std::optional<std::uint64_t> read_whole(std::string_view text);

// A finite decimal number and nothing around it. The locale plays no part.
std::optional<double> read_real(std::string_view text);

// "yes"/"no", "true"/"false", "on"/"off", "1"/"0".
std::optional<bool> read_toggle(std::string_view text);

// The first byte at which `text` stops being UTF-8 (RFC 3629: no overlong forms, no surrogates); nothing when
// all of it is.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// "1.5 GiB"
std::string bytes_text(std::uint64_t bytes);

// "1 block", "2 blocks": of a noun whose plural takes an s.
std::string counted(std::uint64_t number, std::string_view noun);

// "1,234,567"
std::string with_commas(std::uint64_t number);

}  // namespace dgemma::cli
