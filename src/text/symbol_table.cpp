#include "text/symbol_table.h"

#include "text/utf8.h"

namespace dgemma::text {

SymbolTable::SymbolTable() {
    bytes_.fill(-1);
    ascii_.fill(-1);
    pages_.emplace_back().fill(-1);
}

void SymbolTable::set_character(char32_t code, std::int32_t id) {
    if (code > 0x10FFFF) return;
    std::uint16_t& page = page_of_[code >> 8];
    if (page == 0) {
        page = static_cast<std::uint16_t>(pages_.size());
        pages_.emplace_back().fill(-1);
    }
    pages_[page][code & 0xFF] = id;
}

void SymbolTable::finish() {
    for (char32_t code = 0; code < 128; ++code) ascii_[code] = character(code);
    ascii_[' '] = character(kSpaceMark);
}

void SymbolTable::append(std::string_view text, std::vector<std::int32_t>& symbols) const {
    symbols.reserve(symbols.size() + text.size());
    std::size_t pos = 0;
    while (pos < text.size()) {
        const auto lead = static_cast<unsigned char>(text[pos]);
        if (lead < 128 && ascii_[lead] >= 0) {
            symbols.push_back(ascii_[lead]);
            ++pos;
            continue;
        }
        const std::size_t start = pos;
        const char32_t code = next_code_point(text, pos);
        const std::int32_t id = code == ' ' ? character(kSpaceMark) : character(code);
        if (id >= 0) {
            symbols.push_back(id);
            continue;
        }
        const std::string_view bytes = code == ' ' ? kSpaceMarkUtf8 : text.substr(start, pos - start);
        for (const char byte : bytes) symbols.push_back(bytes_[static_cast<unsigned char>(byte)]);
    }
}

}  // namespace dgemma::text
