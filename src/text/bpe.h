// Byte-pair merging: the exact result of "merge the pair of lowest rank, the leftmost of equals, until none
// is left", in O(n log n) for any text (contract/tokenizer.md 1.2, steps 4 and 5).
//
// Three facts make it quick. They follow from the rule alone and hold for any list of merges:
//  1. Whether a merge happens depends only on the symbols it can reach. So if no merge can ever join across a
//  place
//     between two symbols, both sides may be merged alone. Such places are known from the first and last
//     symbols of the merges' sides: in Gemma's vocabulary nearly every word border is one.
//  2. If a border survives in the result, the two sides of it are the results of their own halves. So the
//  last tokens
//     of a window can be dropped and the next window started there.
//  3. A list of tokens is the result for its text exactly if every two neighbours are the result for theirs.
//  (The first
//     merge across a border would be the lowest of the two neighbours' own pairs too, as nothing else touched
//     them.) So results of adjoining windows may be put together once their two tokens at the border are
//     checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dgemma::text {

struct Merge {
    std::int32_t left = 0, right = 0;  // token ids, not negative
    std::int32_t product = 0;
    // The symbols that the left side ends with and the right side begins with: they tell where text may be
    // cut.
    std::int32_t last_of_left = 0, first_of_right = 0;
};

class Bpe {
  public:
    Bpe() : Bpe(0) {}
    // window: symbols merged at once where no safe place is found, at least 16. Best is what the first-level
    // cache holds; tests make it small.
    explicit Bpe(std::size_t merges, std::size_t window = 512);

    // Adds the merges of the next ranks. Stops at a pair that already has a rank; returns how many it added.
    std::size_t add(std::span<const Merge> merges);

    // Merges `symbols` and appends the tokens to `out`. Fewer than 2^32 symbols.
    void encode(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const;

  private:
    static constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;
    struct Slot {
        std::uint64_t pair = ~std::uint64_t{0};
        std::uint32_t rank = kNoRank;
        std::int32_t product = 0;
    };
    struct Workspace;

    [[nodiscard]] const Slot& find(std::int32_t left, std::int32_t right) const;
    [[nodiscard]] bool may_join(std::int32_t last, std::int32_t first) const;
    void merge_short(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const;
    void merge_long(std::span<const std::int32_t> symbols, Workspace& work) const;
    void merge_in_windows(std::span<const std::int32_t> symbols, Workspace& work,
                          std::vector<std::int32_t>& out) const;
    [[nodiscard]] bool border_holds(std::span<const std::int32_t> symbols, std::size_t border,
                                    Workspace& work) const;
    void rehash(std::size_t slots);

    std::size_t window_;
    std::uint32_t count_ = 0;
    std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
    std::vector<std::uint64_t>
        joinable_;  // bits by hash of (last, first); a false "may join" only costs time
};

}  // namespace dgemma::text
