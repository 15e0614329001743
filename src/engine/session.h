// One conversation's token log and the cache of its keys and values, kept in step.
//
// The log is what the model has been told; the cache holds the keys and values of its beginning. What is
// logged and not yet cached is pending and must be encoded before a canvas can be denoised behind it. Whoever
// runs the model takes pieces from pending(), encodes them into cache(), and the session sees them as done.
//
//     begin(prompt)            keeps what log and prompt share, if the cache can go back there
//       encode what is pending
//       propose(canvas)        a denoised block; neither log nor cache know of it
//       commit(kept)           its first `kept` ids are logged, and pending
//         or discard()         it is denoised anew, or dropped
//     end()                    what was logged and never encoded is forgotten
//
// Keys and values of a token depend on the tokens before it and on nothing else, so a cache that was reused,
// taken back or copied is bit for bit what encoding its log anew gives (contract/model.md 9, 2 and 3). The
// keys of a canvas see its whole canvas and are never kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/kv_cache.h"

namespace dgemma::engine {

// How many tokens two logs share at their beginning.
std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// What a change of the log left of the cache.
struct Kept {
    std::int64_t shared = 0;  // tokens that old and new log share and that were cached
    std::int64_t reused = 0;  // of these the cache still holds: all of them, or none
    std::int64_t lost = 0;    // tokens that were cached and are not any more
    // Why reused is less than what was cached; empty where nothing was lost.
    std::string reason;
};

class Session {
  public:
    explicit Session(model::KvCache cache) : cache_(std::move(cache)) {}

    [[nodiscard]] std::span<const std::int32_t> log() const { return log_; }
    [[nodiscard]] const model::KvCache& cache() const { return cache_; }
    [[nodiscard]] model::KvCache& cache() { return cache_; }
    [[nodiscard]] std::span<const std::int32_t> cached() const {
        return log().first(static_cast<std::size_t>(cache_.length()));
    }
    [[nodiscard]] std::span<const std::int32_t> pending() const {
        return log().subspan(static_cast<std::size_t>(cache_.length()));
    }
    // The first `most` pending tokens, and no more than one encode call takes.
    [[nodiscard]] model::Prompt next_piece(std::int64_t most);
    // Encodes all that is pending. Errors: those of Model::encode; what was encoded before stays.
    Status encode_pending(model::Model& model);

    // --- the turn protocol. Steps out of order are bugs.
    Kept begin(std::span<const std::int32_t> prompt);
    void propose(std::vector<std::int32_t> block);  // nothing may be pending
    [[nodiscard]] std::span<const std::int32_t> proposed() const { return proposed_; }
    void commit(std::size_t kept);
    void discard() { proposed_.clear(); }
    void end();

    // --- between turns
    // The log becomes its first `length` tokens.
    Kept rewind(std::size_t length);
    // `removed` tokens from `at` on are replaced by `inserted`; all that followed them is pending.
    Kept splice(std::size_t at, std::size_t removed, std::span<const std::int32_t> inserted);
    void clear();
    // This empty session takes over the first `length` cached tokens of another one, which must be able to
    // rewind there, and leaves that one as it is. Errors: io (memory).
    Status fork_from(const Session& other, std::int64_t length);

  private:
    Kept replace_log(std::span<const std::int32_t> log);

    model::KvCache cache_;
    std::vector<std::int32_t> log_;
    std::vector<std::int32_t> proposed_;
};

}  // namespace dgemma::engine
