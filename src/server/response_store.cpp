#include "server/response_store.h"

namespace dgemma::server {

namespace {

// About what the lists and maps take for a response, and for each of its items.
constexpr std::size_t entry_bytes = 512, item_bytes = 256;

}  // namespace

void ResponseStore::put(const std::string& response_id, const Value::Array& conversation,
                        const Value::Array& output, std::string response) {
    Entry entry;
    entry.id = response_id;
    entry.response = std::move(response);
    entry.bytes = entry_bytes + entry.response.size();
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
    while (bytes_ > most_bytes_) forget(std::prev(entries_.end()));
}

void ResponseStore::forget(Place place) {
    bytes_ -= place->bytes;
    by_response_.erase(place->id);
    for (const std::string& id : place->outputs) by_item_.erase(id);
    entries_.erase(place);
}

bool ResponseStore::forget(const std::string& response_id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_response_.find(response_id);
    if (found == by_response_.end()) return false;
    forget(found->second);
    return true;
}

ResponseStore::Entry* ResponseStore::used(const std::string& response_id) {
    const auto found = by_response_.find(response_id);
    if (found == by_response_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &*found->second;
}

std::optional<Value::Array> ResponseStore::items(const std::string& response_id, bool with_output) {
    std::string json = "[";
    {
        const std::lock_guard lock(mutex_);
        const Entry* entry = used(response_id);
        if (entry == nullptr) return std::nullopt;
        const std::size_t count = entry->items.size() - (with_output ? 0 : entry->outputs.size());
        for (std::size_t i = 0; i < count; ++i) {
            if (i > 0) json += ',';
            json += entry->items[i];
        }
    }
    const Result<Value> items = text::parse_json(json + "]", "a kept response");
    if (!items) return std::nullopt;
    return items.value().as_array();
}

std::optional<Value::Array> ResponseStore::conversation(const std::string& response_id) {
    return items(response_id, true);
}

std::optional<Value::Array> ResponseStore::input(const std::string& response_id) {
    return items(response_id, false);
}

std::optional<std::string> ResponseStore::response(const std::string& response_id) {
    const std::lock_guard lock(mutex_);
    const Entry* entry = used(response_id);
    if (entry == nullptr) return std::nullopt;
    return entry->response;
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
