#include "engine/scheduler_stats.h"

#include <algorithm>

namespace dgemma::engine {

void Histogram::add(double seconds) {
    const auto bound = std::lower_bound(bounds.begin(), bounds.end(), seconds);
    ++counts[static_cast<std::size_t>(bound - bounds.begin())];
    ++count;
    sum += seconds;
}

}  // namespace dgemma::engine
