// From text to the symbols that merging starts from (contract/tokenizer.md 1.2, steps 2 and 3).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dgemma::text {

// What stands for a space inside tokens.
inline constexpr char32_t kSpaceMark = 0x2581;
inline constexpr std::string_view kSpaceMarkUtf8 = "\xE2\x96\x81";

// One symbol per character that is a token, else one per byte of its UTF-8 form. A space reads as U+2581.
class SymbolTable {
  public:
    SymbolTable();

    // Says which id a character has.
    void set_character(char32_t code, std::int32_t id);
    // Says which id the byte token of `byte` has. All 256 must be set before append().
    void set_byte(unsigned char byte, std::int32_t id) { bytes_[byte] = id; }
    // Call when all is set.
    void finish();

    // The id of a character, -1 if it is no token.
    [[nodiscard]] std::int32_t character(char32_t code) const {
        return code > 0x10FFFF ? -1 : pages_[page_of_[code >> 8]][code & 0xFF];
    }

    // Appends the symbols of `text`, which must be valid UTF-8.
    void append(std::string_view text, std::vector<std::int32_t>& symbols) const;

  private:
    using Page = std::array<std::int32_t, 256>;
    std::array<std::int32_t, 256> bytes_{};
    std::array<std::int32_t, 128> ascii_{};        // of one byte of text; -1: by bytes
    std::array<std::uint16_t, 0x1100> page_of_{};  // code point / 256 -> page
    std::vector<Page> pages_;                      // page 0 has no token
};

}  // namespace dgemma::text
