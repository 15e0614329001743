// How far numbers are from those that they should be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dgemma::engine {

class Difference {
  public:
    // A number that is not finite is counted and no more.
    void add(double got, double want) {
        if (!std::isfinite(got)) {
            ++broken_;
            return;
        }
        largest_ = std::max(largest_, std::abs(got - want));
        difference_ += (got - want) * (got - want);
        got_ += got * got, want_ += want * want, product_ += got * want;
    }

    [[nodiscard]] double largest() const { return largest_; }  // of |got - want|
    // |got - want| / |want|; where all of want are 0, 1 for any difference
    [[nodiscard]] double relative_rms() const {
        return want_ > 0 ? std::sqrt(difference_ / want_) : difference_ > 0 ? 1 : 0;
    }
    [[nodiscard]] double cosine() const {
        return want_ > 0 && got_ > 0 ? product_ / std::sqrt(want_ * got_) : want_ == got_ ? 1 : 0;
    }
    [[nodiscard]] std::int64_t broken() const { return broken_; }

  private:
    double largest_ = 0, difference_ = 0, got_ = 0, want_ = 0, product_ = 0;
    std::int64_t broken_ = 0;
};

}  // namespace dgemma::engine
