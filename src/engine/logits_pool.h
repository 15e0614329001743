// Logits between requests: large (canvas x vocabulary), and costly to get from the system for each block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"

namespace dgemma::engine {

class LogitsPool {
  public:
    // The backend outlives the pool. keep: how many unused ones it holds on to.
    LogitsPool(backend::Backend& backend, int vocabulary, std::size_t keep)
        : backend_(backend), vocabulary_(vocabulary), keep_(keep) {
        unused_.reserve(keep);
    }

    // Logits of that many rows, with anything in them. Errors: io (memory), with the remedy.
    Result<std::unique_ptr<backend::Logits>> take(std::int64_t rows);
    void give_back(std::unique_ptr<backend::Logits> logits) noexcept;

    // Of those that nobody uses: the memory they take, and how it is given back to the system.
    [[nodiscard]] std::uint64_t unused_bytes() const;
    void drop_unused() { unused_.clear(); }

  private:
    backend::Backend& backend_;
    int vocabulary_;
    std::size_t keep_;
    std::vector<std::unique_ptr<backend::Logits>> unused_;  // the one given back last at the end
};

}  // namespace dgemma::engine
