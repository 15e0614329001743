// What the router, the kernel before, leaves to the experts' kernels on the emulated machine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "emulated/operands.h"

namespace dgemma::emulated {

// The rows that chose each expert, one expert's after another's. Nobody knows them, and no counter is set,
// before a kernel has waited for the one before.
class ChosenRows {
  public:
    explicit ChosenRows(std::vector<std::vector<int>> rows_of_expert)
        : rows_(std::move(rows_of_expert)),
          experts_(static_cast<std::int64_t>(rows_.size())),
          pairs_(count(rows_)),
          offsets_(experts_ + 1),
          row_at_(pairs_),
          ready_(experts_ + 2),
          dense_ready_(1) {
        constexpr std::int32_t unknown = 1 << 28;
        for (std::int64_t e = 0; e <= experts_; ++e) offsets_[e] = unknown;
        for (std::int64_t i = 0; i < pairs_; ++i) row_at_[i] = unknown;
        for (std::int64_t i = 0; i < experts_ + 2; ++i) ready_[i] = unknown;
        dense_ready_[0] = 0;
        backend::cuda::previous_kernel = [this] { tell(); };
    }
    ChosenRows(const ChosenRows&) = delete;
    ChosenRows& operator=(const ChosenRows&) = delete;

    [[nodiscard]] std::int64_t pairs() const { return pairs_; }
    // Where the places of expert `e` begin; of the one after the last, where they end.
    [[nodiscard]] std::int64_t begin(std::int64_t e) { return offsets_[e]; }
    [[nodiscard]] std::int64_t row_at(std::int64_t place) { return row_at_[place]; }
    // beside_router: the dense MLP has a counter of its own, and begins before the router is over.
    [[nodiscard]] backend::cuda::Places places(bool beside_router) {
        return {pairs_,
                offsets_.data(),
                row_at_.data(),
                ready_.data(),
                beside_router ? dense_ready_.data() : nullptr,
                beside_router ? backend::cuda::Context::kernels() : 0};
    }

  private:
    static std::int64_t count(const std::vector<std::vector<int>>& rows) {
        std::int64_t all = 0;
        for (const auto& own : rows) all += static_cast<std::int64_t>(own.size());
        return all;
    }
    void tell() {
        std::int32_t place = 0;
        for (std::int64_t e = 0; e < experts_; ++e) {
            offsets_[e] = place;
            for (const int row : rows_[static_cast<std::size_t>(e)]) row_at_[place++] = row;
        }
        offsets_[experts_] = place;
        for (std::int64_t i = 0; i < experts_ + 2; ++i) ready_[i] = 0;
    }

    std::vector<std::vector<int>> rows_;
    std::int64_t experts_, pairs_;
    Memory<std::int32_t> offsets_, row_at_, ready_, dense_ready_;
};

}  // namespace dgemma::emulated
