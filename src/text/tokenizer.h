// The tokenizer of a checkpoint: text to ids and back, exactly as the reference library does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/segment.h"

namespace dgemma::text {

struct TokenizerTables;

// What control tokens in the text to encode become.
enum class Specials {
    parse,    // their ids, wherever they stand: the reference's behaviour (goldens, `template`, `--raw`)
    as_text,  // ordinary tokens that spell them: for text from a client
};

// Immutable and cheap to copy (copies share the tables); usable from several threads.
class Tokenizer {
  public:
    // Reads a Hugging Face tokenizer.json, plain or gzipped (told by content). Errors: the file is missing,
    // unreadable, broken, or asks for something other than the BPE of contract/tokenizer.md 1.
    static Result<Tokenizer> load(const std::filesystem::path& file);

    // The same from the text of the file. `name` is what errors call it.
    static Result<Tokenizer> from_json(std::string_view json, std::string_view name = "tokenizer.json");

    // Ids of `text` (contract/tokenizer.md 1.2). Nothing is added: no <bos>. Bytes that are not UTF-8 count
    // as U+FFFD (1.6). At most 4 GiB of text.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, Specials specials) const;

    // Ids of a rendered prompt in safe mode: the ids of all texts put together, except that control tokens
    // are only read where no byte of them comes from a data segment. So without control tokens in the data
    // the ids are those of encode(all texts, Specials::parse), merges across segment borders included.
    [[nodiscard]] std::vector<std::int32_t> encode(std::span<const Segment> segments) const;

    // Text of `ids` (contract/tokenizer.md 1.3); always valid UTF-8. Ids without a token are dropped; special
    // tokens are too if `skip_special`. To decode piecewise use a Detokenizer.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

    // One above the largest id.
    [[nodiscard]] std::int32_t vocab_size() const;

    // The id of a token as the file spells it (U+2581 for a space), -1 if there is none.
    [[nodiscard]] std::int32_t id_of(std::string_view token) const;

    // The token of an id as the file spells it; empty if there is none. Lives as long as any copy of this
    // tokenizer.
    [[nodiscard]] std::string_view token(std::int32_t id) const;

    // Whether the id is a control token, one that `skip_special` drops. False for ids without a token.
    [[nodiscard]] bool is_special(std::int32_t id) const;

  private:
    friend class Detokenizer;
    explicit Tokenizer(std::shared_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}

    std::shared_ptr<const TokenizerTables> tables_;
};

// The tokenizer of a model: `path` is a tokenizer.json (or .json.gz), a directory that holds one, or another
// file of such a directory (a .safetensors file).
Result<Tokenizer> load_tokenizer_for(const std::filesystem::path& path);

}  // namespace dgemma::text
