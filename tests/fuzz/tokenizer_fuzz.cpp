// Any bytes as tokenizer.json: a sentence, or a tokenizer that keeps its promises. And any merges with any
// text: the ids of the naive rule.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace dgemma::text;
using Ids = std::vector<std::int32_t>;

void require(bool held) {
    if (!held) std::abort();
}

void check(const Tokenizer& tokenizer, std::string_view text) {
    for (const Specials specials : {Specials::parse, Specials::as_text}) {
        const Ids ids = tokenizer.encode(text, specials);
        for (const std::int32_t id : ids) {
            require(id >= 0 && id < tokenizer.vocab_size());
            require(specials == Specials::parse || !tokenizer.is_special(id));
        }
        const std::string decoded = tokenizer.decode(ids, false);
        require(is_valid_utf8(decoded));
        Detokenizer detokenizer(tokenizer, false);
        std::string streamed;
        for (const std::int32_t id : ids) streamed += detokenizer.push(id);
        require(streamed + detokenizer.flush() == decoded);
    }
    // Without added tokens, cutting a text into segments changes nothing.
    const std::size_t cut = text.size() / 2;
    const std::vector<Segment> segments = {{sanitize_utf8(text.substr(0, cut)), true},
                                           {sanitize_utf8(text.substr(cut)), true}};
    require(tokenizer.encode(segments) ==
            tokenizer.encode(segments[0].text + segments[1].text, Specials::as_text));
}

constexpr std::size_t kMostTokens = 64;

Ids merged_naively(Ids ids, const std::vector<Merge>& merges) {
    std::vector<std::size_t> ranks(kMostTokens * kMostTokens, merges.size());
    const auto place_of = [](std::int32_t left, std::int32_t right) {
        return static_cast<std::size_t>(left) * kMostTokens + static_cast<std::size_t>(right);
    };
    for (std::size_t i = 0; i < merges.size(); ++i) ranks[place_of(merges[i].left, merges[i].right)] = i;
    for (;;) {
        std::size_t best = merges.size(), place = 0;
        for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
            const std::size_t rank = ranks[place_of(ids[i], ids[i + 1])];
            if (rank < best) place = i;
            best = std::min(best, rank);
        }
        if (best == merges.size()) return ids;
        ids[place] = merges[best].product;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
}

// Symbols 0 to 3. The bytes before the first zero tell the merges, those after it the symbols to merge.
void check_merges(std::string_view bytes) {
    const std::string_view recipe = bytes.substr(0, bytes.find('\0'));
    std::vector<std::string> tokens = {"0", "1", "2", "3"};
    std::vector<Merge> merges;
    for (std::size_t i = 0; i + 1 < recipe.size() && tokens.size() < kMostTokens; i += 2) {
        Merge merge;
        merge.left = static_cast<std::int32_t>(static_cast<unsigned char>(recipe[i]) % tokens.size());
        merge.right = static_cast<std::int32_t>(static_cast<unsigned char>(recipe[i + 1]) % tokens.size());
        const std::string &left = tokens[static_cast<std::size_t>(merge.left)],
                          &right = tokens[static_cast<std::size_t>(merge.right)];
        merge.last_of_left = left.back() - '0';
        merge.first_of_right = right.front() - '0';
        const std::string joined = left + right;
        const auto product = std::find(tokens.begin(), tokens.end(), joined);
        merge.product = static_cast<std::int32_t>(product - tokens.begin());
        const bool again = std::any_of(merges.begin(), merges.end(), [&](const Merge& other) {
            return other.left == merge.left && other.right == merge.right;
        });
        if (joined.size() > 200 || again) continue;
        if (product == tokens.end()) tokens.push_back(joined);
        merges.push_back(merge);
    }
    Ids symbols;
    for (const char c : bytes.substr(recipe.size())) {
        // A byte is a symbol and how often it stands: long runs need little input.
        const auto byte = static_cast<unsigned char>(c);
        symbols.insert(symbols.end(), 1 + byte / 4 % 32, byte % 4);
        if (symbols.size() > 400) break;
    }
    Bpe bpe(merges.size(), 16 + bytes.size() % 64);
    require(bpe.add(merges) == merges.size());
    Ids merged;
    bpe.encode(symbols, merged);
    require(merged == merged_naively(std::move(symbols), merges));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 2 != 0) {
        check_merges(bytes);
        return 0;
    }
    // A file, and after the last zero byte a text for it; also the file as a text.
    const std::size_t zero = bytes.rfind('\0');
    const std::string_view json = bytes.substr(0, zero);
    const auto tokenizer = Tokenizer::from_json(json);
    if (!tokenizer) {
        require(!tokenizer.error().message.empty());
        return 0;
    }
    check(*tokenizer, json);
    if (zero != std::string_view::npos) check(*tokenizer, bytes.substr(zero + 1));
    return 0;
}
