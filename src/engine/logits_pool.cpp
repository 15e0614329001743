#include "engine/logits_pool.h"

#include <algorithm>
#include <utility>

namespace dgemma::engine {

Result<std::unique_ptr<backend::Logits>> LogitsPool::take(std::int64_t rows) {
    const auto found = std::find_if(unused_.begin(), unused_.end(),
                                    [&](const auto& logits) { return logits->rows() == rows; });
    if (found == unused_.end()) {
        auto made = backend_.make_logits(rows, vocabulary_);
        if (made || made.error().kind != ErrorKind::io) return made;
        Error error = std::move(made).error();
        error.message +=
            ": take a smaller canvas (--canvas-length; of a server's request diffusion.canvas_length)";
        return error;
    }
    std::unique_ptr<backend::Logits> logits = std::move(*found);
    unused_.erase(found);
    return logits;
}

void LogitsPool::give_back(std::unique_ptr<backend::Logits> logits) noexcept {
    if (logits == nullptr || keep_ == 0) return;
    if (unused_.size() == keep_) unused_.erase(unused_.begin());
    unused_.push_back(std::move(logits));
}

std::uint64_t LogitsPool::unused_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& logits : unused_) {
        bytes += static_cast<std::uint64_t>(logits->rows()) * static_cast<std::uint64_t>(vocabulary_) *
                 sizeof(float);
    }
    return bytes;
}

}  // namespace dgemma::engine
