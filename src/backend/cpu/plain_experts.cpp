#include "backend/cpu/plain_experts.h"

namespace dgemma::backend::cpu {

ExpertRows::ExpertRows(const Routing& routing, std::int64_t experts) {
    const std::int64_t k = routing.ids.cols;
    const auto pairs = static_cast<std::size_t>(routing.ids.rows * k);
    const auto* ids = static_cast<const std::int32_t*>(routing.ids.data);
    std::vector<std::int64_t> next(static_cast<std::size_t>(experts + 1));
    for (std::size_t i = 0; i < pairs; ++i) ++next[static_cast<std::size_t>(ids[i]) + 1];
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
        if (next[e + 1] > 0) groups.push_back({static_cast<std::int64_t>(e), next[e], next[e + 1]});
        next[e + 1] += next[e];
    }
    pair_at.resize(pairs);
    place_of.resize(pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
        const std::int64_t place = next[static_cast<std::size_t>(ids[i])]++;
        pair_at[static_cast<std::size_t>(place)] = static_cast<std::int64_t>(i);
        place_of[i] = place;
    }
}

}  // namespace dgemma::backend::cpu
