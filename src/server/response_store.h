// What /v1/responses remembers, so that a client can go on from a response by its id, send an item as a
// reference, or ask for the response again. In memory, as JSON text, which takes a tenth of what parsed
// values do; and bounded: the least recently used responses are forgotten.
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

    // conversation: every item up to the response's output. output: its items, with ids. response: the whole
    // of it, as JSON.
    void put(const std::string& response_id, const Value::Array& conversation, const Value::Array& output,
             std::string response);

    // The conversation with the output behind it; nothing for an id that is not known (any more).
    std::optional<Value::Array> conversation(const std::string& response_id);
    // Without that output.
    std::optional<Value::Array> input(const std::string& response_id);
    std::optional<std::string> response(const std::string& response_id);  // as JSON
    // -> whether there was such a response.
    bool forget(const std::string& response_id);
    std::optional<Value> item(const std::string& item_id);
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard lock(mutex_);
        return bytes_;
    }

  private:
    struct Entry {
        std::string id, response;
        std::vector<std::string> items;    // as JSON
        std::vector<std::string> outputs;  // the ids of the last ones of items
        std::size_t bytes = 0;
    };
    using Place = std::list<Entry>::iterator;
    // Where a response stands, as the last used from now on; null where it is not known. With mutex_ held.
    Entry* used(const std::string& response_id);
    std::optional<Value::Array> items(const std::string& response_id, bool with_output);
    void forget(Place place);

    std::size_t most_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // the last used first
    std::map<std::string, Place, std::less<>> by_response_;
    std::map<std::string, std::pair<Place, std::size_t>, std::less<>> by_item_;
    std::size_t bytes_ = 0;
};

}  // namespace dgemma::server
