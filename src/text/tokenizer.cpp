#include "text/tokenizer.h"

#include <array>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "base/quote.h"
#include "files/mapping.h"
#include "text/detokenizer.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

// Collects the ids of one text. What lies between two control tokens is one word for the merges, wherever it
// came from.
class Encoding {
  public:
    explicit Encoding(const TokenizerTables& tables) : tables_(tables) {}

    // Bytes that are not UTF-8 count as U+FFFD; what was added before never completes a character.
    void add_text(std::string_view text) {
        with_valid(text, [this](std::string_view valid) { add_symbols(valid); });
    }

    void add_text_with_control_tokens(std::string_view text) {
        with_valid(text, [this](std::string_view valid) {
            std::size_t pos = 0;
            while (const auto match = tables_.added.find(valid, pos)) {
                add_symbols(valid.substr(pos, match->begin - pos));
                merge();
                ids_.push_back(match->id);
                pos = match->begin + match->length;
            }
            add_symbols(valid.substr(pos));
        });
    }

    std::vector<std::int32_t> finish() {
        merge();
        return std::move(ids_);
    }

  private:
    template <class Use>
    void with_valid(std::string_view text, const Use& use) {
        if (is_valid_utf8(text)) {
            use(text);
        } else {
            use(std::string_view(sanitize_utf8(text)));
        }
    }
    void add_symbols(std::string_view valid) { tables_.symbols.append(valid, symbols_); }
    void merge() {
        tables_.bpe.encode(symbols_, ids_);
        symbols_.clear();
    }

    const TokenizerTables& tables_;
    std::vector<std::int32_t> symbols_;
    std::vector<std::int32_t> ids_;
};

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& file) {
    DGEMMA_TRY(std::string json, read_tokenizer_file(file));
    DGEMMA_TRY(TokenizerTables tables, parse_tokenizer(std::move(json), file.native()));
    return Tokenizer(std::make_shared<const TokenizerTables>(std::move(tables)));
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json, std::string_view name) {
    DGEMMA_TRY(TokenizerTables tables, parse_tokenizer(std::string(json), name));
    return Tokenizer(std::make_shared<const TokenizerTables>(std::move(tables)));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
    Encoding encoding(*tables_);
    if (specials == Specials::parse) {
        encoding.add_text_with_control_tokens(text);
    } else {
        encoding.add_text(text);
    }
    return encoding.finish();
}

std::vector<std::int32_t> Tokenizer::encode(std::span<const Segment> segments) const {
    Encoding encoding(*tables_);
    std::string template_text;  // of the template segments since the last data
    for (const Segment& segment : segments) {
        if (!segment.data) {
            template_text += segment.text;
        } else if (!segment.text.empty()) {
            encoding.add_text_with_control_tokens(std::exchange(template_text, {}));
            encoding.add_text(segment.text);
        }
    }
    encoding.add_text_with_control_tokens(template_text);
    return encoding.finish();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
    Detokenizer detokenizer(*this, skip_special);
    std::string text = detokenizer.push(ids);
    text += detokenizer.flush();
    return text;
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(tables_->tokens.size()); }

std::int32_t Tokenizer::id_of(std::string_view token) const { return tables_->vocabulary.id_of(token); }

std::string_view Tokenizer::token(std::int32_t id) const { return tables_->vocabulary.token(id); }

bool Tokenizer::is_special(std::int32_t id) const {
    return id >= 0 && id < vocab_size() && tables_->tokens[static_cast<std::size_t>(id)].special;
}

Result<Tokenizer> load_tokenizer_for(const std::filesystem::path& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const bool is_directory = fs::is_directory(path, error);
    const std::string extension = path.extension().string();
    if (!is_directory && (extension == ".json" || extension == ".gz")) return Tokenizer::load(path);
    const fs::path directory = is_directory ? path : path.parent_path();
    for (const char* name : {"tokenizer.json", "tokenizer.json.gz"}) {
        if (files::is_there(directory / name)) return Tokenizer::load(directory / name);
    }
    return Error{ErrorKind::not_found,
                 fmt::format("There is no tokenizer.json in {}; download it with hf download ORG/NAME "
                             "tokenizer.json --local-dir and that directory.",
                             quote(directory.empty() ? "." : directory.native()))};
}

}  // namespace dgemma::text
