#include "server/response_store.h"

namespace dgemma::server {

namespace {

// About what the lists and maps take for a response, and for each of its items.
constexpr std::size_t entry_bytes = 512, item_bytes = 256;

}  // namespace

void ResponseStore::put(const std::string& response_id, const Value::Array& conversation,
                        const Value::Array& output) {
    Entry entry;
    entry.id = response_id;
    entry.bytes = entry_bytes;
    for (const Value::Array* part : {&conversation, &output}) {
        for (const Value& item : *part) {
            entry.items.push_back(text::to_json(item));
            entry.bytes += entry.items.back().size() + item_bytes;
        }
    }
    for (const Value& item : output) entry.outputs.emplace_back(text_at(item, "id"));
    const std::lock_guard lock(mutex_);
    if (entry.bytes > most_bytes_ || by_response_.count(response_id) != 0) return;
    bytes_ += entry.bytes;
    entries_.push_front(std::move(entry));
    const Place place = entries_.begin();
    by_response_[response_id] = place;
    const std::size_t first = place->items.size() - place->outputs.size();
    for (std::size_t i = 0; i < place->outputs.size(); ++i) by_item_[place->outputs[i]] = {place, first + i};
    while (bytes_ > most_bytes_) forget_oldest();
}

void ResponseStore::forget_oldest() {
    const Place last = std::prev(entries_.end());
    bytes_ -= last->bytes;
    by_response_.erase(last->id);
    for (const std::string& id : last->outputs) by_item_.erase(id);
    entries_.erase(last);
}

std::optional<Value::Array> ResponseStore::conversation(const std::string& response_id) {
    std::string json = "[";
    {
        const std::lock_guard lock(mutex_);
        const auto found = by_response_.find(response_id);
        if (found == by_response_.end()) return std::nullopt;
        entries_.splice(entries_.begin(), entries_, found->second);
        for (const std::string& item : found->second->items) {
            if (json.size() > 1) json += ',';
            json += item;
        }
    }
    const Result<Value> items = text::parse_json(json + "]", "a kept response");
    if (!items) return std::nullopt;
    return items.value().as_array();
}

std::optional<Value> ResponseStore::item(const std::string& item_id) {
    std::string json;
    {
        const std::lock_guard lock(mutex_);
        const auto found = by_item_.find(item_id);
        if (found == by_item_.end()) return std::nullopt;
        const auto [place, index] = found->second;
        entries_.splice(entries_.begin(), entries_, place);
        json = place->items[index];
    }
    Result<Value> item = text::parse_json(json, "a kept item");
    if (!item) return std::nullopt;
    return std::move(item).value();
}

}  // namespace dgemma::server
