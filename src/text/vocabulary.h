// Token strings and their ids, both ways.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dgemma::text {

// Strings live one after the other in one block: a vocabulary of a quarter million tokens costs four
// allocations.
class Vocabulary {
  public:
    // Makes room for `tokens` tokens in all.
    void reserve(std::size_t tokens);

    // Adds a token. The string must not be in yet and `id` must be free; returns false (and adds nothing)
    // otherwise.
    bool insert(std::string_view token, std::int32_t id);

    // -1 if there is no such token.
    [[nodiscard]] std::int32_t id_of(std::string_view token) const;

    // id_of of many tokens at once: several times quicker, as the waits for memory overlap. Same length.
    void ids_of(std::span<const std::string_view> tokens, std::span<std::int32_t> ids) const;

    // Empty for an id without a token. The view lives as long as the vocabulary and until the next insert.
    [[nodiscard]] std::string_view token(std::int32_t id) const {
        if (!contains(id)) return {};
        const Place& place = places_[static_cast<std::size_t>(id)];
        return std::string_view(characters_).substr(place.offset, static_cast<std::size_t>(place.length));
    }

    [[nodiscard]] bool contains(std::int32_t id) const {
        return id >= 0 && static_cast<std::size_t>(id) < places_.size() &&
               places_[static_cast<std::size_t>(id)].length >= 0;
    }

    [[nodiscard]] std::size_t count() const { return count_; }

    // One above the largest id: equal to count() when ids are dense.
    [[nodiscard]] std::size_t id_bound() const { return places_.size(); }

  private:
    struct Place {
        std::uint32_t offset = 0;
        std::int32_t length = -1;  // -1: no token has this id
    };
    struct Slot {
        std::uint32_t tag = 0;  // upper bits of the hash, so that most misses never touch the strings
        std::int32_t id = -1;
    };

    void rehash(std::size_t slots);
    void place_in_slots(std::uint64_t hash, std::int32_t id);
    [[nodiscard]] std::int32_t find(std::string_view token, std::uint64_t hash) const;

    std::string characters_;
    std::vector<Place> places_;  // by id
    std::vector<Slot> slots_;    // open addressing, a power of two, at most half full
    std::size_t count_ = 0;
};

}  // namespace dgemma::text
