#include "files/quote.h"

#include <fmt/format.h>

namespace dgemma::files {

std::string quote(std::string_view name) {
    constexpr std::size_t longest = 200;
    std::string out = "\"";
    for (const char c : name.substr(0, longest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte >= 0x7F) {
            out += fmt::format("\\x{:02x}", byte);
        } else {
            out += c;
        }
    }
    if (name.size() > longest) out += "...";
    return out + "\"";
}

}  // namespace dgemma::files
