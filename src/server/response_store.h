// What /v1/responses remembers, so that a client can go on from a response by its id, or send an item as a
// reference. In memory, as JSON text, which takes a tenth of what parsed values do; and bounded: the least
// recently used responses are forgotten.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json.h"

namespace dgemma::server {

// Usable from any thread.
class ResponseStore {
  public:
    // most_bytes: of all that is kept, with what keeping it takes.
    explicit ResponseStore(std::size_t most_bytes) : most_bytes_(most_bytes) {}

    // conversation: every item up to the response's output. output: its items, with ids.
    void put(const std::string& response_id, const Value::Array& conversation, const Value::Array& output);

    // The conversation with the output behind it; nothing for an id that is not known (any more).
    std::optional<Value::Array> conversation(const std::string& response_id);
    std::optional<Value> item(const std::string& item_id);
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard lock(mutex_);
        return bytes_;
    }

  private:
    struct Entry {
        std::string id;
        std::vector<std::string> items;    // as JSON
        std::vector<std::string> outputs;  // the ids of the last ones of items
        std::size_t bytes = 0;
    };
    using Place = std::list<Entry>::iterator;
    void forget_oldest();

    std::size_t most_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // the last used first
    std::map<std::string, Place, std::less<>> by_response_;
    std::map<std::string, std::pair<Place, std::size_t>, std::less<>> by_item_;
    std::size_t bytes_ = 0;
};

}  // namespace dgemma::server
