// The rounds of tool turns: which request of the engine made the calls that a client now sends the results
// of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "server/json.h"
#include "text/tool_call.h"

namespace dgemma::server {

// What tells a round: the conversation up to it, without what a client may leave out (thoughts, and what was
// said besides calls), and its calls. `messages` and `tools` in the template's form.
std::string round_key(const Value& messages, const Value& tools, bool thinking,
                      const std::vector<text::ToolCall>& calls);

// Of messages that end with calls and their results: where the calls are, and the calls. Nothing for others.
struct LastRound {
    std::size_t calls_at = 0;  // the assistant's message
    std::vector<text::ToolCall> calls;
};
std::optional<LastRound> last_round(const Value& messages);

// Usable from any thread; the oldest of many rounds are forgotten.
class Rounds {
  public:
    void remember(std::string key, engine::RequestId id);
    [[nodiscard]] engine::RequestId find(const std::string& key);  // 0: none

  private:
    std::mutex mutex_;
    std::map<std::string, engine::RequestId> rounds_;
    std::list<std::string> order_;  // the oldest first
};

}  // namespace dgemma::server
