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
// should the chunk be thrown away, what the cache held before it.
class KvCache {
  public:
    // chunk: the most tokens one encode call may add. type: f32 or bf16.
    KvCache(const Config& config, backend::Backend& backend, std::int64_t chunk, Dtype type);

    [[nodiscard]] std::int64_t length() const { return length_; }  // committed tokens
    [[nodiscard]] std::int64_t chunk() const { return chunk_; }
    [[nodiscard]] Dtype type() const { return type_; }

    // Makes slots for positions up to `length`. Errors: io, when memory runs out; the cache is then as
    // before.
    Status reserve(std::int64_t length);
    // Tokens written by now count; at most `chunk` more than before, all of them reserved and stored.
    void commit(std::int64_t length);
    // Forgets everything; keeps the memory.
    void clear() { length_ = 0; }

    [[nodiscard]] backend::KvPages layer(std::size_t l) const;

    // Bytes that one more token costs in the full layers, and what the rings cost once.
    static std::int64_t bytes_per_token(const TextConfig& text, Dtype type);
    static std::int64_t ring_bytes(const TextConfig& text, std::int64_t chunk, Dtype type);

  private:
    struct Layer {
        std::int64_t capacity = 0;  // slots of the ring; of a full layer, more than any position
        std::int64_t page_bytes = 0;
        bool ring = false;
        std::vector<std::unique_ptr<backend::Storage>> memory;
        std::vector<void*> keys, values;
    };

    backend::Backend& backend_;
    std::int64_t chunk_;
    Dtype type_;
    std::int64_t length_ = 0;
    std::vector<Layer> layers_;
};

}  // namespace dgemma::model
