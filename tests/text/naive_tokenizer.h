// The tokenizer of the contract written once more, as plainly as it goes: the oracle of the real one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace dgemma::testing {

using nlohmann::json;

// A tokenizer.json of the right scheme: <pad>, <eos>, <bos>, <unk>, 256 byte tokens, then `tokens`, ids in
// this order. A merge is given as its two sides.
inline json tokenizer_json(const std::vector<std::string>& tokens,
                           const std::vector<std::pair<std::string, std::string>>& merges) {
    json vocabulary = json::object();
    json added = json::array();
    for (const char* token : {"<pad>", "<eos>", "<bos>", "<unk>"}) {
        const std::size_t id = vocabulary.size();
        vocabulary[token] = id;
        added.push_back({{"id", id}, {"content", token}, {"special", true}});
    }
    for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 4 + byte;
    for (const std::string& token : tokens) {
        const std::size_t id = vocabulary.size();
        vocabulary[token] = id;
    }
    json pairs = json::array();
    for (const auto& [left, right] : merges) pairs.push_back({left, right});
    return {{"added_tokens", added},
            {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}},
            {"pre_tokenizer",
             {{"type", "Split"},
              {"pattern", {{"String", " "}}},
              {"behavior", "MergedWithPrevious"},
              {"invert", false}}},
            {"decoder",
             {{"type", "Sequence"},
              {"decoders",
               {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}}}}}},
            {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocabulary}, {"merges", pairs}}}};
}

class NaiveTokenizer {
  public:
    explicit NaiveTokenizer(const json& file) {
        for (const auto& [token, id] : file["model"]["vocab"].items()) ids_[token] = id;
        for (const auto& merge : file["model"]["merges"]) {
            const auto left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
            const int rank = static_cast<int>(merges_.size());
            merges_[pair_of(ids_.at(left), ids_.at(right))] = {rank, ids_.at(left + right)};
        }
        for (const auto& token : file["added_tokens"]) added_[token["content"]] = token["id"];
    }

    // contract/tokenizer.md 1.2; without step 1 if not `parse`.
    [[nodiscard]] std::vector<std::int32_t> encode(const std::string& text, bool parse) const {
        std::vector<std::int32_t> out;
        std::string segment;
        for (std::size_t pos = 0; pos < text.size();) {
            const std::pair<const std::string, std::int32_t>* longest = nullptr;
            for (const auto& entry : added_) {
                if (text.compare(pos, entry.first.size(), entry.first) != 0) continue;
                if (longest == nullptr || entry.first.size() > longest->first.size()) longest = &entry;
            }
            if (!parse || longest == nullptr) {
                segment += text[pos++];
                continue;
            }
            merge(std::exchange(segment, {}), out);
            out.push_back(longest->second);
            pos += longest->first.size();
        }
        merge(segment, out);
        return out;
    }

  private:
    static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
        return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
    }

    void merge(const std::string& segment, std::vector<std::int32_t>& out) const {
        std::vector<std::int32_t> symbols;
        for (std::size_t pos = 0; pos < segment.size();) {
            const auto lead = static_cast<unsigned char>(segment[pos]);
            const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
            std::string character = segment.substr(pos, length);
            if (character == " ") character = "▁";
            pos += length;
            if (const auto found = ids_.find(character); found != ids_.end()) {
                symbols.push_back(found->second);
                continue;
            }
            for (const char byte : character) {
                symbols.push_back(ids_.at(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte))));
            }
        }
        for (;;) {
            std::pair<int, std::int32_t> best{-1, 0};
            std::size_t place = 0;
            for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
                const auto found = merges_.find(pair_of(symbols[i], symbols[i + 1]));
                if (found == merges_.end() || (best.first >= 0 && found->second.first >= best.first))
                    continue;
                best = found->second;
                place = i;
            }
            if (best.first < 0) break;
            symbols[place] = best.second;
            symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
        }
        out.insert(out.end(), symbols.begin(), symbols.end());
    }

    std::unordered_map<std::string, std::int32_t> ids_;
    std::unordered_map<std::uint64_t, std::pair<int, std::int32_t>> merges_;  // pair -> rank, product
    std::map<std::string, std::int32_t> added_;
};

}  // namespace dgemma::testing
