#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace dgemma::text {

namespace {

// Eight bytes a step; the length is mixed in, so zero padding of the last step makes no two strings alike.
std::uint64_t hash_of(std::string_view token) {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;
    std::uint64_t hash = (token.size() + 1) * kFactor;
    while (!token.empty()) {
        std::uint64_t word = 0;
        const std::size_t bytes = std::min<std::size_t>(token.size(), sizeof word);
        std::memcpy(&word, token.data(), bytes);
        hash = ((hash ^ hash >> 32) ^ word) * kFactor;
        token.remove_prefix(bytes);
    }
    return hash ^ hash >> 29;
}

constexpr std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

void Vocabulary::reserve(std::size_t tokens) {
    places_.reserve(tokens);
    characters_.reserve(tokens * 10);  // the real vocabulary has nine bytes a token
    if (tokens * 2 > slots_.size()) rehash(std::bit_ceil(std::max<std::size_t>(tokens * 2, 16)));
}

void Vocabulary::rehash(std::size_t slots) {
    slots_.assign(slots, Slot{});
    for (std::size_t id = 0; id < places_.size(); ++id) {
        const auto signed_id = static_cast<std::int32_t>(id);
        if (contains(signed_id)) place_in_slots(hash_of(token(signed_id)), signed_id);
    }
}

void Vocabulary::place_in_slots(std::uint64_t hash, std::int32_t id) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash & mask;
    while (slots_[i].id >= 0) i = (i + 1) & mask;
    slots_[i] = {tag_of(hash), id};
}

bool Vocabulary::insert(std::string_view token, std::int32_t id) {
    if (id < 0 || contains(id) || id_of(token) >= 0) return false;
    if ((count_ + 1) * 2 > slots_.size()) rehash(std::max<std::size_t>(slots_.size() * 2, 16));
    if (static_cast<std::size_t>(id) >= places_.size()) places_.resize(static_cast<std::size_t>(id) + 1);
    places_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(characters_.size()),
                                             static_cast<std::int32_t>(token.size())};
    characters_ += token;
    place_in_slots(hash_of(token), id);
    ++count_;
    return true;
}

std::int32_t Vocabulary::find(std::string_view token, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
        if (slots_[i].tag == tag_of(hash) && this->token(slots_[i].id) == token) return slots_[i].id;
    }
    return -1;
}

std::int32_t Vocabulary::id_of(std::string_view token) const {
    return slots_.empty() ? -1 : find(token, hash_of(token));
}

void Vocabulary::ids_of(std::span<const std::string_view> tokens, std::span<std::int32_t> ids) const {
    if (slots_.empty()) {
        std::fill(ids.begin(), ids.end(), -1);
        return;
    }
    // A lookup reads a slot, then the place of its token, then the characters, each from another corner of
    // memory. So the first slots of a batch are fetched together, then their places, then their characters.
    constexpr std::size_t kBatch = 32;
    std::array<std::uint64_t, kBatch> hashes;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kBatch) {
        const std::size_t count = std::min(kBatch, tokens.size() - begin);
        const auto first_place = [&](std::size_t i) -> const Place* {
            const std::int32_t id = slots_[hashes[i] & mask].id;
            return id < 0 ? nullptr : &places_[static_cast<std::size_t>(id)];
        };
        for (std::size_t i = 0; i < count; ++i) {
            hashes[i] = hash_of(tokens[begin + i]);
            __builtin_prefetch(&slots_[hashes[i] & mask]);
        }
        for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(first_place(i));
        for (std::size_t i = 0; i < count; ++i) {
            if (const Place* place = first_place(i)) __builtin_prefetch(characters_.data() + place->offset);
        }
        for (std::size_t i = 0; i < count; ++i) ids[begin + i] = find(tokens[begin + i], hashes[i]);
    }
}

}  // namespace dgemma::text
