// Ids to text piece by piece: contract/tokenizer.md 1.3 and 1.4.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace dgemma::text {

// Decodes a stream of ids. Every piece is whole, valid UTF-8 and is never taken back; all pieces together are
// what Tokenizer::decode gives for all ids. One per reply: its state outlives a canvas.
class Detokenizer {
  public:
    Detokenizer(Tokenizer tokenizer, bool skip_special)
        : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

    // The text that becomes final with `ids`. A run of byte tokens is held back until another token ends it,
    // since a bad byte at its end turns all of it into U+FFFD.
    [[nodiscard]] std::string push(std::span<const std::int32_t> ids);
    [[nodiscard]] std::string push(std::int32_t id) { return push(std::span(&id, 1)); }

    // The rest of the text. Afterwards a next text can begin.
    [[nodiscard]] std::string flush();

  private:
    Tokenizer tokenizer_;
    bool skip_special_;
    std::string bytes_;  // the run of byte tokens that is held back
};

}  // namespace dgemma::text
