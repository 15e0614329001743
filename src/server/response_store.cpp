#include "server/response_store.h"

#include <utility>

namespace dgemma::server {

void ResponseStore::put(const std::string& response_id, Value::Array conversation,
                        const Value::Array& output) {
    Entry entry;
    entry.id = response_id;
    entry.items = std::move(conversation);
    entry.items.insert(entry.items.end(), output.begin(), output.end());
    entry.outputs = output.size();
    entry.bytes = text::to_json(Value::array(entry.items)).size();
    const std::lock_guard lock(mutex_);
    if (entry.bytes > most_bytes_ || by_response_.count(response_id) != 0) return;
    bytes_ += entry.bytes;
    entries_.push_front(std::move(entry));
    const Place place = entries_.begin();
    by_response_[response_id] = place;
    for (std::size_t i = place->items.size() - place->outputs; i < place->items.size(); ++i)
        by_item_[std::string(text_at(place->items[i], "id"))] = {place, i};
    while (bytes_ > most_bytes_) forget_oldest();
}

void ResponseStore::forget_oldest() {
    const Place last = std::prev(entries_.end());
    bytes_ -= last->bytes;
    by_response_.erase(last->id);
    for (std::size_t i = last->items.size() - last->outputs; i < last->items.size(); ++i)
        by_item_.erase(std::string(text_at(last->items[i], "id")));
    entries_.erase(last);
}

std::optional<Value::Array> ResponseStore::conversation(const std::string& response_id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_response_.find(response_id);
    if (found == by_response_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->items;
}

std::optional<Value> ResponseStore::item(const std::string& item_id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_item_.find(item_id);
    if (found == by_item_.end()) return std::nullopt;
    const auto [place, index] = found->second;
    entries_.splice(entries_.begin(), entries_, place);
    return place->items[index];
}

}  // namespace dgemma::server
