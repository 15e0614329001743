// What a tokenizer is made of, and how it comes out of a tokenizer.json. Private to the tokenizer and its
// tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/symbol_table.h"
#include "text/vocabulary.h"

namespace dgemma::text {

struct TokenizerTables {
    // How a token is written out.
    enum class Kind : std::uint8_t { plain, with_space_mark, byte };
    struct Token {
        Kind kind = Kind::plain;
        bool special = false;
        unsigned char byte = 0;  // of a byte token such as <0x0A>
    };

    Vocabulary vocabulary;      // ids are dense
    std::vector<Token> tokens;  // by id
    SymbolTable symbols;
    AddedTokens added;
    Bpe bpe;
};

// Reads the text of a tokenizer.json. Errors call the file `name`. Spare capacity of
// simdjson::SIMDJSON_PADDING bytes saves a copy.
Result<TokenizerTables> parse_tokenizer(std::string json, std::string_view name);

}  // namespace dgemma::text
