#include "model/kv_cache.h"

#include <algorithm>
#include <cassert>

namespace dgemma::model {

namespace {

using backend::page_tokens;

std::int64_t round_to_pages(std::int64_t tokens) {
    return (tokens + page_tokens - 1) / page_tokens * page_tokens;
}

std::int64_t ring_slots(const TextConfig& text, std::int64_t chunk) {
    return round_to_pages(text.sliding_window - 1 + chunk);
}

// Keys alone (or values alone) of one token.
std::int64_t token_bytes(const LayerConfig& layer, Dtype type) {
    return static_cast<std::int64_t>(layer.kv_heads) * layer.head_dim *
           static_cast<std::int64_t>(size_of(type));
}

}  // namespace

KvCache::KvCache(const Config& config, backend::Backend& backend, std::int64_t chunk, Dtype type)
    : backend_(backend), chunk_(chunk), type_(type) {
    assert(chunk > 0 && (type == Dtype::f32 || type == Dtype::bf16));
    constexpr std::int64_t beyond_any_position = std::int64_t{1} << 40;
    for (const LayerConfig& layer : config.text.layers) {
        Layer& l = layers_.emplace_back();
        l.ring = layer.kind == LayerKind::sliding;
        l.capacity = l.ring ? ring_slots(config.text, chunk) : beyond_any_position;
        l.page_bytes = page_tokens * token_bytes(layer, type);
    }
}

Status KvCache::reserve(std::int64_t length) {
    for (Layer& layer : layers_) {
        const std::int64_t slots = std::min(round_to_pages(length), layer.capacity);
        while (static_cast<std::int64_t>(layer.keys.size()) * page_tokens < slots) {
            DGEMMA_TRY(auto keys, backend_.allocate(static_cast<std::size_t>(layer.page_bytes)));
            DGEMMA_TRY(auto values, backend_.allocate(static_cast<std::size_t>(layer.page_bytes)));
            layer.keys.push_back(keys->data());
            layer.values.push_back(values->data());
            layer.memory.push_back(std::move(keys));
            layer.memory.push_back(std::move(values));
        }
    }
    return {};
}

void KvCache::commit(std::int64_t length) {
    assert(length >= length_ && length <= length_ + chunk_);
    length_ = length;
}

backend::KvPages KvCache::layer(std::size_t l) const {
    return {layers_[l].keys, layers_[l].values, layers_[l].capacity, type_};
}

std::int64_t KvCache::bytes_per_token(const TextConfig& text, Dtype type) {
    std::int64_t bytes = 0;
    for (const LayerConfig& layer : text.layers) {
        if (layer.kind == LayerKind::full) bytes += 2 * token_bytes(layer, type);
    }
    return bytes;
}

std::int64_t KvCache::ring_bytes(const TextConfig& text, std::int64_t chunk, Dtype type) {
    std::int64_t bytes = 0;
    for (const LayerConfig& layer : text.layers) {
        if (layer.kind == LayerKind::sliding) bytes += 2 * token_bytes(layer, type) * ring_slots(text, chunk);
    }
    return bytes;
}

}  // namespace dgemma::model
