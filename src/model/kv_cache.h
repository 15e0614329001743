// The keys and values of one sequence (contract/model.md 7).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "model/config.h"

namespace dgemma::model {

// Full layers keep every token and grow by pages. Sliding layers are rings of window - 1 kept tokens plus
// room for one prefill chunk, so that writing a chunk never overwrites what its first row still sees, nor,
// should the chunk be thrown away, what the cache held before it. More slots let a long cache be taken back
// further.
class KvCache {
  public:
    // chunk: the most tokens one encode call may add. type: f32, bf16 or f16. rewind_tokens: how far a cache
    // can be taken back for certain, however long it is, after the chunk written last.
    KvCache(const Config& config, backend::Backend& backend, std::int64_t chunk, Dtype type,
            std::int64_t rewind_tokens = 0);

    [[nodiscard]] std::int64_t length() const { return length_; }  // committed tokens
    [[nodiscard]] std::int64_t chunk() const { return chunk_; }
    [[nodiscard]] Dtype type() const { return type_; }
    [[nodiscard]] std::uint64_t bytes() const;  // allocated

    // Makes slots for positions up to `length`, which may then be written. Errors: io, when memory runs out;
    // the cache is then as before.
    Status reserve(std::int64_t length);
    // Tokens written by now count; at most `chunk` more than before, all of them reserved and stored.
    void commit(std::int64_t length);
    // Forgets everything; keeps the memory.
    void clear() { length_ = oldest_ = 0; }

    // Whether the first `length` tokens, no more than there are, can still be gone on from: whether the rings
    // hold the window before that place. A slot is lost once a position one turn of the ring further on was
    // reserved, also if that one was taken back later.
    [[nodiscard]] bool can_rewind(std::int64_t length) const;
    // Forgets the tokens from `length` on; keeps the memory. can_rewind(length) must hold.
    void rewind(std::int64_t length);
    // Gives back pages of full layers that hold no token.
    void trim();
    // Becomes a copy of the first `length` tokens of another cache of the same kind, which must be able to
    // rewind there. Errors: io (memory); the cache is then empty.
    Status copy_from(const KvCache& other, std::int64_t length);

    // A hash of everything a further pass could read: length, and the keys and values of all positions in
    // order, of sliding layers those in the window. Slow; for tests.
    [[nodiscard]] std::uint64_t fingerprint() const;

    [[nodiscard]] backend::KvPages layer(std::size_t l) const;

    // Bytes that a token costs in all full layers, and in all sliding ones, pages not rounded up: a double,
    // since what a config.json may ask for is beyond 64 bits.
    static double bytes_per_token(const TextConfig& text, LayerKind kind, Dtype type);
    // Tokens that a sliding layer keeps: its window and one chunk.
    static std::int64_t ring_tokens(const TextConfig& text, std::int64_t chunk) {
        return std::int64_t{text.sliding_window} - 1 + chunk;
    }
    // What a cache of this kind allocates for `tokens`.
    [[nodiscard]] std::uint64_t bytes_for(std::int64_t tokens) const;

  private:
    struct Layer {
        std::int64_t capacity = 0;  // slots of the ring; of a full layer, more than any position
        std::int64_t page_bytes = 0;
        std::int64_t head_bytes = 0;  // of one token's keys in one head
        bool ring = false;
        std::vector<std::unique_ptr<backend::Storage>> memory;
        std::vector<void*> keys, values;
    };

    [[nodiscard]] std::int64_t window_begin(std::int64_t length) const {
        return length > window_ ? length - window_ : 0;
    }

    backend::Backend& backend_;
    std::int64_t chunk_;
    Dtype type_;
    std::int64_t window_;      // tokens before the next one that a sliding layer still needs
    std::int64_t ring_slots_;  // capacity of every ring
    std::int64_t length_ = 0;
    std::int64_t oldest_ = 0;  // the first position that no ring has lost
    std::vector<Layer> layers_;
};

}  // namespace dgemma::model
