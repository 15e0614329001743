// What the head says of one canvas row, and access to the row itself.
#pragma once

#include <cstdint>
#include <span>

namespace dgemma {

// Of zt = z / T, the softcapped logits over the step's temperature (contract/generation.md 3).
struct RowStats {
    std::int32_t argmax = 0;  // lowest id on ties
    float max = 0;            // zt[argmax]
    float log_sum_exp = 0;
    float entropy = 0;   // nats, of softmax(zt)
    bool finite = true;  // false: the row held a NaN or an infinity, and nothing else here means anything
};

// The rows of one canvas after a pass. Reading a whole row may cost a copy from a device: only drawing needs
// it.
class LogitRows {
  public:
    virtual ~LogitRows() = default;
    [[nodiscard]] virtual std::span<const RowStats> stats() const = 0;  // [canvas]
    [[nodiscard]] virtual std::span<const float> row(
        int position) = 0;  // zt, [vocab]; valid until the next call
};

}  // namespace dgemma
