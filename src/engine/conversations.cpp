#include "engine/conversations.h"

#include <algorithm>

#include <fmt/core.h>

namespace dgemma::engine {

namespace {

// Below so many shared tokens a copy of all pages costs about what encoding them does.
constexpr std::int64_t shortest_copy = 16;
// A client may repeat a request, or go on from an earlier round.
constexpr std::size_t most_rounds = 8;

}  // namespace

Start Conversations::find(std::span<const std::int32_t> prompt) {
    Start best;
    std::int64_t gone = 0;  // the longest prefix that a window has left
    for (Conversation& c : all_) {
        const auto shared = static_cast<std::int64_t>(common_prefix(c.session.cached(), prompt));
        if (!c.session.cache().can_rewind(shared)) {
            gone = std::max(gone, shared);
            continue;
        }
        const bool better =
            best.from == nullptr || shared > best.shared ||
            (shared == best.shared &&
             (best.from->busy != c.busy ? best.from->busy : c.last_used > best.from->last_used));
        if (shared > 0 && better) {
            best.from = &c;
            best.shared = shared;
        }
    }
    const auto fresh = [&](const char* cause, std::string reason) {
        return Start{.how = Start::How::fresh,
                     .from = nullptr,
                     .shared = 0,
                     .cause = cause,
                     .reason = std::move(reason)};
    };
    if (gone > best.shared) {
        best.cause = "window";
        best.reason = fmt::format(
            "a conversation shares {} tokens, but its sliding window has left that place behind", gone);
    }
    if (best.from == nullptr) {
        if (gone > 0) return fresh("window", best.reason);
        return fresh("new", "no conversation begins like this");
    }
    const std::int64_t cached = best.from->session.cache().length();
    const std::int64_t lost = cached - best.shared;
    if (best.cause.empty() && lost > 0) {
        best.cause = "parts";
        best.reason =
            fmt::format("the prompt parts from the conversation at token {} of {}", best.shared, cached);
    }
    if (!best.from->busy && lost == 0) {
        best.how = Start::How::in_place;
    } else if (best.shared >= shortest_copy) {
        best.how = Start::How::fork;
    } else if (best.cause == "window") {
        return fresh("window", best.reason);
    } else {
        return fresh("short", fmt::format("a conversation shares only {} tokens", best.shared));
    }
    return best;
}

const Round* Conversations::round(std::uint64_t request) const {
    for (const Conversation& c : all_) {
        for (const Round& one : c.rounds) {
            if (one.request == request) return &one;
        }
    }
    return nullptr;
}

void Conversations::add_round(Conversation& conversation, Round round) {
    if (conversation.rounds.size() == most_rounds) conversation.rounds.pop_front();
    conversation.rounds.push_back(std::move(round));
}

Conversation& Conversations::add(model::KvCache cache) {
    Conversation& made = all_.emplace_back(++made_, std::move(cache));
    touch(made);
    return made;
}

void Conversations::erase(Conversation& conversation) {
    all_.remove_if([&](const Conversation& c) { return &c == &conversation; });
}

void Conversations::forget_empty() {
    all_.remove_if([](const Conversation& c) { return !c.busy && c.session.log().empty(); });
}

Conversation* Conversations::least_recent(const Conversation* spared) {
    Conversation* found = nullptr;
    for (Conversation& c : all_) {
        if (!c.busy && &c != spared && (found == nullptr || c.last_used < found->last_used)) found = &c;
    }
    return found;
}

Conversation* Conversations::untidy() {
    Conversation* found = nullptr;
    for (Conversation& c : all_) {
        if (!c.busy && !c.session.pending().empty() && (found == nullptr || c.last_used > found->last_used))
            found = &c;
    }
    return found;
}

std::uint64_t Conversations::committed_bytes() const {
    std::uint64_t bytes = 0;
    for (const Conversation& c : all_)
        bytes += c.busy ? std::max(c.reserved, c.session.cache().bytes()) : c.session.cache().bytes();
    return bytes;
}

std::uint64_t Conversations::idle_bytes(const Conversation* spared) const {
    std::uint64_t bytes = 0;
    for (const Conversation& c : all_) {
        if (!c.busy && &c != spared) bytes += c.session.cache().bytes();
    }
    return bytes;
}

std::uint64_t Conversations::cache_bytes() const {
    std::uint64_t bytes = 0;
    for (const Conversation& c : all_) bytes += c.session.cache().bytes();
    return bytes;
}

std::uint64_t Conversations::reserved_bytes() const {
    std::uint64_t bytes = 0;
    for (const Conversation& c : all_) {
        if (c.busy) bytes += c.reserved;
    }
    return bytes;
}

}  // namespace dgemma::engine
