#include "engine/session.h"

#include <algorithm>
#include <cassert>

#include <fmt/core.h>

namespace dgemma::engine {

std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    const std::size_t n = std::min(a.size(), b.size());
    const auto end = a.begin() + static_cast<std::ptrdiff_t>(n);
    return static_cast<std::size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

model::Prompt Session::next_piece(std::int64_t most) {
    const auto limit = static_cast<std::size_t>(std::min(most, cache_.chunk()));
    return {&cache_, pending().first(std::min(pending().size(), limit))};
}

Status Session::encode_pending(model::Model& model) { return model.encode(cache_, pending()); }

Kept Session::begin(std::span<const std::int32_t> prompt) {
    assert(proposed_.empty());
    return replace_log(prompt);
}

void Session::propose(std::vector<std::int32_t> block) {
    assert(pending().empty() && proposed_.empty());
    proposed_ = std::move(block);
}

void Session::commit(std::size_t kept) {
    assert(kept <= proposed_.size());
    log_.insert(log_.end(), proposed_.begin(), proposed_.begin() + static_cast<std::ptrdiff_t>(kept));
    proposed_.clear();
}

void Session::end() {
    proposed_.clear();
    log_.resize(static_cast<std::size_t>(cache_.length()));
}

Kept Session::rewind(std::size_t length) {
    assert(length <= log_.size() && proposed_.empty());
    const std::vector<std::int32_t> shorter(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(length));
    return replace_log(shorter);
}

Kept Session::splice(std::size_t at, std::size_t removed, std::span<const std::int32_t> inserted) {
    assert(at <= log_.size() && removed <= log_.size() - at && proposed_.empty());
    const auto begin = log_.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<std::int32_t> changed(log_.begin(), begin);
    changed.insert(changed.end(), inserted.begin(), inserted.end());
    changed.insert(changed.end(), begin + static_cast<std::ptrdiff_t>(removed), log_.end());
    return replace_log(changed);
}

void Session::clear() {
    cache_.clear();
    log_.clear();
    proposed_.clear();
}

Status Session::fork_from(const Session& other, std::int64_t length) {
    clear();
    const std::span<const std::int32_t> ids = other.log().first(static_cast<std::size_t>(length));
    log_.reserve(ids.size());  // before the cache changes: from here on nothing can fail that was begun
    DGEMMA_CHECK(cache_.copy_from(other.cache_, length));
    log_.assign(ids.begin(), ids.end());
    return {};
}

Kept Session::replace_log(std::span<const std::int32_t> log) {
    const std::int64_t had = cache_.length();
    Kept kept;
    kept.shared = static_cast<std::int64_t>(common_prefix(cached(), log));
    kept.reused = cache_.can_rewind(kept.shared) ? kept.shared : 0;
    kept.lost = had - kept.reused;
    if (kept.reused < kept.shared) {
        kept.reason = fmt::format("the sliding window has left token {}, and {} of {} cached tokens are kept",
                                  kept.shared, kept.reused, had);
    } else if (kept.lost > 0) {
        kept.reason = fmt::format("the log changes at token {} of {} cached ones", kept.shared, had);
    }
    cache_.rewind(kept.reused);
    log_.assign(log.begin(), log.end());
    return kept;
}

}  // namespace dgemma::engine
