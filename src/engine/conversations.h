// The conversations whose keys and values are held: who goes on where, and who is forgotten.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "engine/session.h"

namespace dgemma::engine {

// What a request made of its prompt: the prompt itself, what was delivered, and the stop id if there was one.
struct Round {
    std::uint64_t request = 0;
    std::vector<std::int32_t> raw_log;
};

struct Conversation {
    Conversation(std::uint64_t name, model::KvCache cache) : number(name), session(std::move(cache)) {}

    std::uint64_t number;  // counted from 1
    Session session;
    bool busy = false;            // a running request's
    std::uint64_t reserved = 0;   // bytes that request may come to need, while busy
    std::uint64_t last_used = 0;  // grows with every use of any conversation
    std::deque<Round> rounds;     // the latest ones, the last one at the end
};

// How a prompt is best begun.
struct Start {
    enum class How : std::uint8_t { fresh, in_place, fork } how = How::fresh;
    Conversation* from = nullptr;  // of in_place and fork
    std::int64_t shared = 0;       // tokens that need not be encoded
    // Why no more than that: one of "new", "short", "window", "memory", and a sentence; both empty where
    // all of a conversation is gone on from.
    std::string cause, reason;
};

class Conversations {
  public:
    // The conversation that shares the longest prefix with `prompt`, of those that can be gone on from at its
    // end. Taken as it is if all of it is shared, else copied if that is worth the while: whoever began it
    // may come back.
    [[nodiscard]] Start find(std::span<const std::int32_t> prompt);
    // The raw log of request `round`; null when its conversation is not held any more, or has had many rounds
    // since.
    [[nodiscard]] const Round* round(std::uint64_t request) const;
    // Keeps it with the conversation that its request ran on.
    static void add_round(Conversation& conversation, Round round);

    Conversation& add(model::KvCache cache);
    void erase(Conversation& conversation);
    void forget_empty();  // idle ones that hold nothing
    void touch(Conversation& conversation) { conversation.last_used = ++uses_; }
    // The idle one that was not used for longest, `spared` excepted; null when there is none.
    [[nodiscard]] Conversation* least_recent(const Conversation* spared);
    // One with tokens to encode although no request runs on it, the one used last; null when there is none.
    [[nodiscard]] Conversation* untidy();

    // Bytes of idle conversations, and of busy ones what they hold or may come to need, whichever is more.
    [[nodiscard]] std::uint64_t committed_bytes() const;
    [[nodiscard]] std::uint64_t idle_bytes(const Conversation* spared) const;
    [[nodiscard]] std::uint64_t cache_bytes() const;
    [[nodiscard]] std::uint64_t reserved_bytes() const;
    [[nodiscard]] std::size_t size() const { return all_.size(); }

  private:
    std::list<Conversation> all_;
    std::uint64_t uses_ = 0, made_ = 0;
};

}  // namespace dgemma::engine
