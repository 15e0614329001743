#include "text/added_tokens.h"

#include <algorithm>

namespace dgemma::text {

AddedTokens::AddedTokens(std::vector<std::pair<std::string, std::int32_t>> tokens)
    : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end());
    for (const auto& [token, id] : tokens_) begins_[static_cast<unsigned char>(token[0])] = true;
}

std::optional<AddedTokens::Match> AddedTokens::match_at(std::string_view text, std::size_t begin) const {
    // [first, last) are the tokens that share the `depth` bytes read so far. The shortest of them sorts
    // first.
    auto first = tokens_.begin(), last = tokens_.end();
    std::optional<Match> longest;
    for (std::size_t depth = 0; first != last; ++depth) {
        if (first->first.size() == depth) {
            longest = Match{begin, depth, first->second};
            ++first;
        }
        if (begin + depth >= text.size()) break;
        const auto byte = static_cast<unsigned char>(text[begin + depth]);
        const auto byte_of = [&](const auto& token) {
            return static_cast<unsigned char>(token.first[depth]);
        };
        first = std::partition_point(first, last, [&](const auto& token) { return byte_of(token) < byte; });
        last = std::partition_point(first, last, [&](const auto& token) { return byte_of(token) == byte; });
    }
    return longest;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from) const {
    if (tokens_.empty()) return std::nullopt;
    for (std::size_t pos = from; pos < text.size(); ++pos) {
        if (!begins_[static_cast<unsigned char>(text[pos])]) continue;
        if (auto match = match_at(text, pos)) return match;
    }
    return std::nullopt;
}

}  // namespace dgemma::text
