#include "text/tokenizer_tables.h"

#include <array>
#include <cstddef>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include <fmt/core.h>
#include <simdjson.h>

#include "base/quote.h"
#include "text/tokenizer_scheme.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// At every place of a text, matching added tokens reads at most this many bytes.
constexpr std::size_t kLongestAddedToken = 1024;

std::int32_t hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

// The byte that a token such as <0x0A> stands for, -1 for any other token.
std::int32_t byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const std::int32_t high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

struct MergeSides {
    std::string_view left, right;
};

struct NamedToken {
    std::string_view name;
    std::int32_t id = -1;
};

// A merge is ["a", "b"], in older files "a b". False if it is neither.
bool read_sides(element entry, MergeSides& sides) {
    array pair;
    if (entry.get(pair) == simdjson::SUCCESS) {
        auto side = pair.begin();
        return pair.size() == 2 && (*side).get(sides.left) == simdjson::SUCCESS &&
               (*++side).get(sides.right) == simdjson::SUCCESS;
    }
    std::string_view both;
    if (entry.get(both) != simdjson::SUCCESS) return false;
    const std::size_t space = both.find(' ');
    if (space == std::string_view::npos) return false;
    sides = {both.substr(0, space), both.substr(space + 1)};
    return sides.right.find(' ') == std::string_view::npos;
}

// Builds the tables from one file; the members are the file's parts in the order they are needed.
class Builder {
  public:
    explicit Builder(std::string_view name) : name_(name) {}

    Result<TokenizerTables> build(element root);

  private:
    using Kind = TokenizerTables::Kind;

    [[nodiscard]] Error broken(std::string_view what) const { return broken_tokenizer(name_, what); }
    [[nodiscard]] Error unsupported(std::string_view what) const {
        return unsupported_tokenizer(name_, what);
    }
    [[nodiscard]] TokenizerTables::Token& facts(std::int32_t id) {
        return tables_.tokens[static_cast<std::size_t>(id)];
    }

    Status read_vocabulary(object vocabulary, std::size_t added_tokens);
    Status read_added_token(element entry);
    Status name_symbols();
    Status read_merges(array merges);
    Status add_merges(std::span<const MergeSides> batch);
    Status check_merge(std::size_t number, const std::array<NamedToken, 3>& left_right_product);
    [[nodiscard]] std::int32_t first_symbol(std::string_view token) const;
    [[nodiscard]] std::int32_t last_symbol(std::string_view token) const;
    Status complete();

    std::string_view name_;
    TokenizerTables tables_;
    std::vector<std::pair<std::string, std::int32_t>> added_;       // all added tokens
    std::vector<std::pair<std::string, std::int32_t>> only_added_;  // those that "vocab" does not have
    std::size_t merges_ = 0;                                        // added so far
    // Scratch of add_merges.
    std::string joined_;
    std::vector<std::string_view> names_;
    std::vector<std::int32_t> ids_;
    std::vector<std::size_t> product_names_;
    std::vector<Merge> found_;
};

Result<TokenizerTables> Builder::build(element root) {
    object top, model, vocabulary;
    array merges, added;
    if (root.get(top) != simdjson::SUCCESS) return broken("it is not a JSON object");
    if (top["model"].get(model) != simdjson::SUCCESS) return broken("it has no \"model\"");
    DGEMMA_CHECK(check_scheme(top, model, name_));
    if (model["vocab"].get(vocabulary) != simdjson::SUCCESS)
        return broken("its model has no \"vocab\" of tokens");
    if (model["merges"].get(merges) != simdjson::SUCCESS)
        return broken("its model has no list of \"merges\"");
    const auto added_member = member(top, "added_tokens");
    if (added_member && added_member->get(added) != simdjson::SUCCESS)
        return broken("its \"added_tokens\" are no list");

    std::size_t added_count = 0;
    if (added_member) added_count = static_cast<std::size_t>(std::distance(added.begin(), added.end()));
    DGEMMA_CHECK(read_vocabulary(vocabulary, added_count));
    if (added_member) {
        for (const element entry : added) DGEMMA_CHECK(read_added_token(entry));
    }
    DGEMMA_CHECK(name_symbols());
    tables_.bpe = Bpe(merges.size());
    DGEMMA_CHECK(read_merges(merges));
    DGEMMA_CHECK(complete());
    return std::move(tables_);
}

Status Builder::read_vocabulary(object vocabulary, std::size_t added_tokens) {
    std::size_t count = 0;  // object::size() stops counting at 2^24
    for (auto field = vocabulary.begin(); field != vocabulary.end(); ++field) ++count;
    if (count == 0) return broken("its vocabulary is empty");
    // Ids above the vocabulary are left for added tokens. Whether they fill the gap is seen at the end.
    const std::size_t bound = count + added_tokens;
    if (bound > std::numeric_limits<std::int32_t>::max() / 4)
        return unsupported("its vocabulary is too large");
    tables_.vocabulary.reserve(bound);
    tables_.tokens.resize(bound);
    for (const auto field : vocabulary) {
        const std::string_view token = field.key;
        std::int64_t id = 0;
        if (field.value.get(id) != simdjson::SUCCESS) {
            return broken(fmt::format("the id of token {} is not an integer", quote(token)));
        }
        if (id < 0 || static_cast<std::uint64_t>(id) >= bound) {
            return broken(
                fmt::format("token {} has id {} in a vocabulary of {} tokens", quote(token), id, count));
        }
        const auto small_id = static_cast<std::int32_t>(id);
        if (tables_.vocabulary.insert(token, small_id)) continue;
        if (!tables_.vocabulary.contains(small_id)) {
            return broken(fmt::format("token {} is in the vocabulary twice", quote(token)));
        }
        return broken(fmt::format("id {} belongs to two tokens, {} and {}", id,
                                  quote(tables_.vocabulary.token(small_id)), quote(token)));
    }
    return {};
}

Status Builder::read_added_token(element entry) {
    std::string_view token;
    std::int64_t id = 0;
    object fields;
    if (entry.get(fields) != simdjson::SUCCESS || fields["content"].get(token) != simdjson::SUCCESS ||
        fields["id"].get(id) != simdjson::SUCCESS) {
        return broken("an entry of \"added_tokens\" has no \"content\" or no integer \"id\"");
    }
    if (token.empty()) return broken("an added token is empty");
    if (token.size() > kLongestAddedToken) {
        return unsupported(
            fmt::format("the added token {} is longer than {} bytes", quote(token), kLongestAddedToken));
    }
    if (id < 0 || static_cast<std::uint64_t>(id) >= tables_.tokens.size()) {
        return broken(fmt::format("the added token {} has id {}, and there are {} tokens in all",
                                  quote(token), id, tables_.tokens.size()));
    }
    for (const std::string_view flag : {"lstrip", "rstrip", "single_word", "normalized"}) {
        bool set = false;
        if (const auto value = member(fields, flag); value && (value->get(set) != simdjson::SUCCESS || set)) {
            return unsupported(fmt::format("the added token {} sets {}", quote(token), flag));
        }
    }
    bool special = false;
    if (const auto value = member(fields, "special"); value && value->get(special) != simdjson::SUCCESS) {
        return broken(
            fmt::format("\"special\" of the added token {} is neither true nor false", quote(token)));
    }
    const auto small_id = static_cast<std::int32_t>(id);
    const std::int32_t in_vocabulary = tables_.vocabulary.id_of(token);
    if (in_vocabulary >= 0 && in_vocabulary != small_id) {
        return broken(fmt::format("the added token {} has id {}, and {} in the vocabulary", quote(token), id,
                                  in_vocabulary));
    }
    facts(small_id).special = special;
    added_.emplace_back(token, small_id);
    if (in_vocabulary < 0) only_added_.emplace_back(token, small_id);
    return {};
}

Status Builder::name_symbols() {
    for (std::int32_t byte = 0; byte < 256; ++byte) {
        const std::string token = fmt::format("<0x{:02X}>", byte);
        const std::int32_t id = tables_.vocabulary.id_of(token);
        if (id < 0) return broken(fmt::format("its vocabulary lacks the byte token {}", token));
        if (facts(id).special) return unsupported(fmt::format("the byte token {} is marked special", token));
        tables_.symbols.set_byte(static_cast<unsigned char>(byte), id);
    }
    for (std::size_t i = 0; i < tables_.vocabulary.id_bound(); ++i) {
        const auto id = static_cast<std::int32_t>(i);
        const std::string_view token = tables_.vocabulary.token(id);
        // No special token is a symbol: text must not turn into one unless added tokens are looked for.
        if (token.empty() || token.size() > 4 || facts(id).special) continue;
        std::size_t end = 0;
        const char32_t code = next_code_point(token, end);
        if (end == token.size()) tables_.symbols.set_character(code, id);
    }
    tables_.symbols.finish();
    return {};
}

Status Builder::read_merges(array merges) {
    constexpr std::size_t kBatch = 512;
    std::vector<MergeSides> batch;
    batch.reserve(kBatch);
    for (const element entry : merges) {
        MergeSides sides;
        if (!read_sides(entry, sides)) {
            return broken(
                fmt::format("merge {} is not a pair of tokens, nor two tokens with one space between",
                            merges_ + batch.size()));
        }
        batch.push_back(sides);
        if (batch.size() < kBatch) continue;
        DGEMMA_CHECK(add_merges(batch));
        batch.clear();
    }
    return add_merges(batch);
}

Status Builder::add_merges(std::span<const MergeSides> batch) {
    // The names of the batch: left and right of each merge, and their joined form. Merges that give the same
    // token mostly follow each other, so a joined form is looked up only where it differs from the one
    // before.
    joined_.clear();
    for (const auto& [left, right] : batch) joined_.append(left).append(right);
    names_.clear();
    product_names_.clear();
    std::string_view rest = joined_, previous;
    for (const auto& [left, right] : batch) {
        const std::string_view joined = rest.substr(0, left.size() + right.size());
        rest.remove_prefix(joined.size());
        if (names_.empty() || joined != previous) names_.push_back(joined);
        product_names_.push_back(names_.size() - 1);
        previous = joined;
    }
    const std::size_t products = names_.size();
    for (const auto& [left, right] : batch) names_.insert(names_.end(), {left, right});
    ids_.resize(names_.size());
    tables_.vocabulary.ids_of(names_, ids_);

    found_.clear();
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::size_t product = product_names_[i], left = products + 2 * i, right = left + 1;
        const std::size_t number = merges_ + i;
        DGEMMA_CHECK(
            check_merge(number, {NamedToken{names_[left], ids_[left]}, NamedToken{names_[right], ids_[right]},
                                 NamedToken{names_[product], ids_[product]}}));
        found_.push_back(
            {ids_[left], ids_[right], ids_[product], last_symbol(names_[left]), first_symbol(names_[right])});
    }
    if (const std::size_t added = tables_.bpe.add(found_); added < batch.size()) {
        return broken(fmt::format("merge {} of {} and {} is there twice", merges_ + added,
                                  quote(batch[added].left), quote(batch[added].right)));
    }
    merges_ += batch.size();
    return {};
}

Status Builder::check_merge(std::size_t number, const std::array<NamedToken, 3>& tokens) {
    for (const auto& [name, id] : tokens) {
        if (name.empty()) return broken(fmt::format("merge {} has an empty side", number));
        if (id < 0)
            return broken(
                fmt::format("merge {} names {}, which is not in the vocabulary", number, quote(name)));
        if (byte_of(name) >= 0)
            return unsupported(fmt::format("merge {} touches the byte token {}", number, name));
    }
    const NamedToken& product = tokens[2];
    if (facts(product.id).special) {
        return unsupported(fmt::format("merge {} spells the control token {}", number, quote(product.name)));
    }
    return {};
}

// The symbol of a character at the end of a token. A character that is no symbol has none (-1), and no text
// ever brings it next to a merge.
std::int32_t Builder::first_symbol(std::string_view token) const {
    std::size_t pos = 0;
    return tables_.symbols.character(next_code_point(token, pos));
}

std::int32_t Builder::last_symbol(std::string_view token) const {
    std::size_t pos = token.size() - 1;
    while ((static_cast<unsigned char>(token[pos]) & 0xC0) == 0x80) --pos;
    return tables_.symbols.character(next_code_point(token, pos));
}

Status Builder::complete() {
    for (const auto& [token, id] : only_added_) {
        if (!tables_.vocabulary.insert(token, id)) {
            return broken(fmt::format("the added token {} or its id {} is there twice", quote(token), id));
        }
    }
    Vocabulary& vocabulary = tables_.vocabulary;
    for (std::size_t i = 0; i < vocabulary.id_bound(); ++i) {
        const auto id = static_cast<std::int32_t>(i);
        if (!vocabulary.contains(id)) return broken(fmt::format("no token has id {}", id));
        const std::string_view token = vocabulary.token(id);
        if (const std::int32_t byte = byte_of(token); byte >= 0) {
            facts(id).kind = Kind::byte;
            facts(id).byte = static_cast<unsigned char>(byte);
        } else if (token.find(kSpaceMarkUtf8) != std::string_view::npos) {
            facts(id).kind = Kind::with_space_mark;
        }
    }
    tables_.tokens.resize(vocabulary.id_bound());
    tables_.added = AddedTokens(std::move(added_));
    return {};
}

}  // namespace

Result<TokenizerTables> parse_tokenizer(std::string json, std::string_view name) {
    try {
        json.reserve(json.size() + simdjson::SIMDJSON_PADDING);
        simdjson::dom::parser parser;
        element root;
        const simdjson::error_code error = parser.parse(json.data(), json.size(), false).get(root);
        if (error != simdjson::SUCCESS) {
            std::string_view fault = simdjson::error_message(error);
            if (fault.ends_with('.')) fault.remove_suffix(1);
            return broken_tokenizer(name, fmt::format("it is not JSON ({})", fault));
        }
        return Builder(name).build(root);
    } catch (const std::bad_alloc&) {
        return Error{
            ErrorKind::io,
            fmt::format("The tokenizer {} does not fit into memory; free some memory.", quote(name))};
    }
}

}  // namespace dgemma::text
