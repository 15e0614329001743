#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace dgemma::text {

namespace {

// Up to here the lowest rank is found by looking at all of them: no heap, no links, no allocation.
constexpr std::size_t kShort = 32;

// Bits of the filter of joinable symbols. Gemma's merges have 33,695 such pairs: three in a hundred bits.
constexpr std::size_t kJoinableBits = std::size_t{1} << 20;

constexpr std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
}

constexpr std::uint64_t hash_of(std::uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 32;
}

}  // namespace

// The symbols of one window as a linked list, and the pairs that may merge.
struct Bpe::Workspace {
    struct Node {
        std::int32_t id;
        std::uint32_t rank;  // of this node and the next; kNoRank also for a node that was merged away
        std::int32_t product;
        std::uint32_t previous, next;
    };
    static constexpr std::uint32_t kEnd = 0xFFFFFFFFu;

    std::vector<Node> nodes;
    std::vector<std::uint64_t> heap;  // rank << 32 | position: the lowest rank, of equals the leftmost
};

Bpe::Bpe(std::size_t merges, std::size_t window) : window_(window), joinable_(kJoinableBits / 64) {
    rehash(std::bit_ceil(std::max<std::size_t>(merges * 2, 16)));
}

void Bpe::rehash(std::size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    const std::size_t mask = slots - 1;
    for (const Slot& slot : old) {
        if (slot.rank == kNoRank) continue;
        std::size_t i = hash_of(slot.pair) & mask;
        while (slots_[i].rank != kNoRank) i = (i + 1) & mask;
        slots_[i] = slot;
    }
}

std::size_t Bpe::add(std::span<const Merge> merges) {
    const std::size_t needed = std::bit_ceil((count_ + merges.size()) * 2);
    if (needed > slots_.size()) rehash(needed);
    const std::size_t mask = slots_.size() - 1;
    const auto home = [&](const Merge& merge) { return hash_of(pair_of(merge.left, merge.right)) & mask; };
    // Each slot is in another corner of memory: ask for those ahead, so that the waits overlap.
    constexpr std::size_t kAhead = 16;
    for (std::size_t m = 0; m < std::min(kAhead, merges.size()); ++m)
        __builtin_prefetch(&slots_[home(merges[m])], 1);
    for (std::size_t m = 0; m < merges.size(); ++m) {
        if (m + kAhead < merges.size()) __builtin_prefetch(&slots_[home(merges[m + kAhead])], 1);
        const Merge& merge = merges[m];
        const std::uint64_t pair = pair_of(merge.left, merge.right);
        std::size_t i = home(merge);
        for (; slots_[i].rank != kNoRank; i = (i + 1) & mask) {
            if (slots_[i].pair == pair) return m;
        }
        slots_[i] = {pair, count_++, merge.product};
        const std::size_t bit = hash_of(pair_of(merge.last_of_left, merge.first_of_right)) % kJoinableBits;
        joinable_[bit / 64] |= std::uint64_t{1} << bit % 64;
    }
    return merges.size();
}

const Bpe::Slot& Bpe::find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash_of(pair) & mask;
    while (slots_[i].pair != pair && slots_[i].rank != kNoRank) i = (i + 1) & mask;
    return slots_[i];
}

bool Bpe::may_join(std::int32_t last, std::int32_t first) const {
    const std::size_t bit = hash_of(pair_of(last, first)) % kJoinableBits;
    return (joinable_[bit / 64] >> bit % 64 & 1) != 0;
}

void Bpe::encode(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const {
    Workspace work;
    std::size_t begin = 0;
    while (begin < symbols.size()) {
        std::size_t end = begin + 1;
        while (end < symbols.size() && may_join(symbols[end - 1], symbols[end])) ++end;
        const auto piece = symbols.subspan(begin, end - begin);
        if (piece.size() <= kShort) {
            merge_short(piece, out);
        } else {
            merge_in_windows(piece, work, out);
        }
        begin = end;
    }
}

void Bpe::merge_short(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const {
    std::array<std::int32_t, kShort> ids, products;
    std::array<std::uint32_t, kShort> ranks;  // of each symbol and the one after it
    std::size_t count = symbols.size();
    const auto look_up = [&](std::size_t i) {
        const Slot& slot = find(ids[i], ids[i + 1]);
        ranks[i] = slot.rank;
        products[i] = slot.product;
    };
    std::copy(symbols.begin(), symbols.end(), ids.begin());
    for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < count; ++i) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == kNoRank) break;
        ids[best] = products[best];
        --count;
        for (std::size_t i = best + 1; i < count; ++i) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
            products[i] = products[i + 1];
        }
        if (best + 1 < count) look_up(best);
        if (best > 0) look_up(best - 1);
    }
    out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::merge_long(std::span<const std::int32_t> symbols, Workspace& work) const {
    constexpr std::uint32_t kEnd = Workspace::kEnd;
    auto& nodes = work.nodes;
    auto& heap = work.heap;
    nodes.resize(symbols.size());
    heap.clear();
    const auto entry = [&](std::uint32_t i) { return std::uint64_t{nodes[i].rank} << 32 | i; };
    const auto look_up = [&](std::uint32_t i) {
        auto& node = nodes[i];
        node.rank = kNoRank;
        if (node.next == kEnd) return false;
        const Slot& slot = find(node.id, nodes[node.next].id);
        node.rank = slot.rank;
        node.product = slot.product;
        return slot.rank != kNoRank;
    };
    const auto count = static_cast<std::uint32_t>(symbols.size());
    for (std::uint32_t i = 0; i < count; ++i) {
        nodes[i] = {symbols[i], kNoRank, 0, i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        if (look_up(i)) heap.push_back(entry(i));
    }
    const std::greater<> order;
    std::make_heap(heap.begin(), heap.end(), order);
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), order);
        const auto rank = static_cast<std::uint32_t>(heap.back() >> 32);
        const auto i = static_cast<std::uint32_t>(heap.back());
        heap.pop_back();
        auto& node = nodes[i];
        if (node.rank != rank) continue;  // one of its two symbols has changed since
        auto& merged = nodes[node.next];
        node.id = node.product;
        node.next = merged.next;
        merged.rank = kNoRank;
        if (node.next != kEnd) nodes[node.next].previous = i;
        for (const std::uint32_t changed : {i, node.previous}) {
            if (changed == kEnd || !look_up(changed)) continue;
            heap.push_back(entry(changed));
            std::push_heap(heap.begin(), heap.end(), order);
        }
    }
}

bool Bpe::border_holds(std::span<const std::int32_t> symbols, std::size_t border, Workspace& work) const {
    merge_long(symbols, work);
    std::uint32_t i = 0;
    while (i != Workspace::kEnd && i < border) i = work.nodes[i].next;
    return i == border;
}

void Bpe::merge_in_windows(std::span<const std::int32_t> symbols, Workspace& work,
                           std::vector<std::int32_t>& out) const {
    // What is kept of a window of `length` symbols: tokens for symbols [begin, end), the last of which begins
    // at `last`.
    struct Kept {
        std::size_t begin = 0, end = 0, last = 0, length = 0;
        std::size_t out_begin = 0;
    };
    std::vector<Kept> kept;
    Workspace border_work;
    std::size_t begin = 0, length = window_;
    while (begin < symbols.size()) {
        const std::size_t window_end = symbols.size() - begin <= length ? symbols.size() : begin + length;
        merge_long(symbols.subspan(begin, window_end - begin), work);

        // Tokens that end close to the window's end could still change: they are left to the next window.
        const std::size_t limit = window_end == symbols.size() ? window_end : window_end - window_ / 16;
        Kept now{begin, begin, begin, window_end - begin, out.size()};
        std::size_t first_end = 0;
        for (std::uint32_t i = 0; i != Workspace::kEnd;) {
            const auto& node = work.nodes[i];
            const std::size_t end = node.next == Workspace::kEnd ? window_end : begin + node.next;
            if (end > limit && i != 0) break;
            if (i == 0) first_end = end;
            out.push_back(node.id);
            now.last = begin + i;
            now.end = end;
            i = node.next;
        }

        if (kept.empty() || border_holds(symbols.subspan(kept.back().last, first_end - kept.back().last),
                                         begin - kept.back().last, border_work)) {
            kept.push_back(now);
            begin = now.end;
            length = window_;
            continue;
        }
        // The window before would have ended otherwise. A window is merged again only within one of at least
        // twice its length: no symbol is merged more than O(log n) times, and no two windows take turns for
        // ever.
        length = 2 * now.length;
        do {
            begin = kept.back().begin;
            length = std::max(length, 2 * kept.back().length);
            out.resize(kept.back().out_begin);
            kept.pop_back();
        } while (!kept.empty() && symbols.size() - begin < length);
        length = std::max(length, window_end - begin);
    }
}

}  // namespace dgemma::text
