#include "model/kv_cache.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>

namespace dgemma::model {

namespace {

using backend::page_tokens;

std::int64_t round_to_pages(std::int64_t tokens) {
    return (tokens + page_tokens - 1) / page_tokens * page_tokens;
}

// Keys alone (or values alone) of one token.
std::int64_t token_bytes(const LayerConfig& layer, Dtype type) {
    return static_cast<std::int64_t>(layer.kv_heads) * layer.head_dim *
           static_cast<std::int64_t>(size_of(type));
}

// FNV-1a over words of eight bytes. `bytes` is a multiple of four.
std::uint64_t mixed(std::uint64_t hash, std::span<const std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
        hash = (hash ^ word) * 0x100000001B3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

}  // namespace

KvCache::KvCache(const Config& config, backend::Backend& backend, std::int64_t chunk, Dtype type,
                 std::int64_t rewind_tokens)
    : backend_(backend),
      chunk_(chunk),
      type_(type),
      window_(config.text.sliding_window - 1),
      ring_slots_(round_to_pages(ring_tokens(config.text, chunk + rewind_tokens))) {
    assert(chunk > 0 && rewind_tokens >= 0 &&
           (type == Dtype::f32 || type == Dtype::bf16 || type == Dtype::f16));
    constexpr std::int64_t beyond_any_position = std::int64_t{1} << 40;
    for (const LayerConfig& layer : config.text.layers) {
        Layer& l = layers_.emplace_back();
        l.ring = layer.kind == LayerKind::sliding;
        l.capacity = l.ring ? ring_slots_ : beyond_any_position;
        l.page_bytes = page_tokens * token_bytes(layer, type);
        l.head_bytes = layer.head_dim * static_cast<std::int64_t>(size_of(type));
    }
}

std::uint64_t KvCache::bytes() const {
    std::uint64_t bytes = 0;
    for (const Layer& layer : layers_)
        bytes += layer.memory.size() * static_cast<std::uint64_t>(layer.page_bytes);
    return bytes;
}

std::uint64_t KvCache::bytes_for(std::int64_t tokens) const {
    std::uint64_t bytes = 0;
    for (const Layer& layer : layers_) {
        const std::int64_t slots = std::min(round_to_pages(tokens), layer.capacity);
        bytes += 2 * static_cast<std::uint64_t>(slots / page_tokens * layer.page_bytes);
    }
    return bytes;
}

Status KvCache::reserve(std::int64_t length) {
    for (Layer& layer : layers_) {
        const std::int64_t slots = std::min(round_to_pages(length), layer.capacity);
        while (static_cast<std::int64_t>(layer.keys.size()) * page_tokens < slots) {
            DGEMMA_TRY(auto keys, backend_.allocate(static_cast<std::size_t>(layer.page_bytes)));
            DGEMMA_TRY(auto values, backend_.allocate(static_cast<std::size_t>(layer.page_bytes)));
            // The lists grow together or, where there is no memory for that, not at all.
            layer.keys.reserve(layer.keys.size() + 1);
            layer.values.reserve(layer.keys.size() + 1);
            layer.memory.reserve(layer.memory.size() + 2);
            layer.keys.push_back(keys->data());
            layer.values.push_back(values->data());
            layer.memory.push_back(std::move(keys));
            layer.memory.push_back(std::move(values));
        }
    }
    oldest_ = std::max(oldest_, length - ring_slots_);
    return {};
}

void KvCache::commit(std::int64_t length) {
    assert(length >= length_ && length <= length_ + chunk_);
    length_ = length;
}

bool KvCache::can_rewind(std::int64_t length) const {
    assert(length >= 0 && length <= length_);
    return length == 0 || window_begin(length) >= oldest_;
}

void KvCache::rewind(std::int64_t length) {
    assert(can_rewind(length));
    length_ = length;
    if (length == 0) oldest_ = 0;
}

void KvCache::trim() {
    for (Layer& layer : layers_) {
        if (layer.ring) continue;
        const auto pages = static_cast<std::size_t>(round_to_pages(length_) / page_tokens);
        if (layer.keys.size() <= pages) continue;
        layer.keys.resize(pages);
        layer.values.resize(pages);
        layer.memory.resize(2 * pages);
    }
}

Status KvCache::copy_from(const KvCache& other, std::int64_t length) {
    assert(other.can_rewind(length) && other.ring_slots_ == ring_slots_ && other.type_ == type_);
    clear();
    DGEMMA_CHECK(reserve(length));
    const auto element = static_cast<std::int64_t>(backend_.activation_bytes());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
        const Layer &from = other.layers_[l], &to = layers_[l];
        const std::int64_t begin = to.ring ? other.oldest_ / page_tokens * page_tokens : 0;
        for (std::int64_t p = begin; p < length; p += page_tokens) {
            const auto page = static_cast<std::size_t>(p % to.capacity / page_tokens);
            const std::int64_t n = to.page_bytes / element;
            backend_.copy({from.keys[page], 1, n}, {to.keys[page], 1, n});
            backend_.copy({from.values[page], 1, n}, {to.values[page], 1, n});
        }
    }
    length_ = length;
    oldest_ = other.oldest_;
    return {};
}

std::uint64_t KvCache::fingerprint() const {
    std::uint64_t hash = 0xCBF29CE484222325ull ^ static_cast<std::uint64_t>(length_);
    for (const Layer& layer : layers_) {
        std::vector<std::byte> keys(static_cast<std::size_t>(layer.page_bytes)), values(keys.size());
        const auto stride = static_cast<std::size_t>(page_tokens * layer.head_bytes);
        const auto width = static_cast<std::size_t>(layer.head_bytes);
        std::int64_t loaded = -1;
        for (std::int64_t p = layer.ring ? window_begin(length_) : 0; p < length_; ++p) {
            const std::int64_t slot = p % layer.capacity;
            if (slot / page_tokens != loaded) {
                loaded = slot / page_tokens;
                backend_.read_memory(layer.keys[static_cast<std::size_t>(loaded)], keys);
                backend_.read_memory(layer.values[static_cast<std::size_t>(loaded)], values);
            }
            for (std::size_t at = static_cast<std::size_t>(slot % page_tokens) * width; at < keys.size();
                 at += stride) {
                hash = mixed(hash, std::span(keys).subspan(at, width));
                hash = mixed(hash, std::span(values).subspan(at, width));
            }
        }
    }
    return hash;
}

backend::KvPages KvCache::layer(std::size_t l) const {
    return {layers_[l].keys, layers_[l].values, layers_[l].capacity, type_};
}

double KvCache::bytes_per_token(const TextConfig& text, LayerKind kind, Dtype type) {
    double bytes = 0;
    for (const LayerConfig& layer : text.layers) {
        if (layer.kind == kind)
            bytes += 2.0 * layer.kv_heads * layer.head_dim * static_cast<double>(size_of(type));
    }
    return bytes;
}

}  // namespace dgemma::model
