#include "diffusion/sampler.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

namespace dgemma::diffusion {

std::vector<std::uint8_t> entropy_bound_mask(std::span<const float> entropies, float bound) {
    std::vector<std::size_t> order(entropies.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return entropies[a] < entropies[b]; });
    std::vector<std::uint8_t> accept(entropies.size(), 0);
    float sum = 0;
    for (const std::size_t k : order) {
        sum += entropies[k];
        accept[k] = sum - entropies[k] <= bound;
    }
    return accept;
}

std::vector<std::uint8_t> confidence_threshold_mask(std::span<const float> confidences,
                                                    std::span<const std::uint8_t> revealed, float threshold) {
    std::vector<std::uint8_t> accept(confidences.size(), 0);
    std::size_t best = confidences.size();
    bool any = false;
    for (std::size_t i = 0; i < confidences.size(); ++i) {
        if (revealed[i]) continue;
        accept[i] = confidences[i] >= threshold;
        any = any || accept[i];
        if (best == confidences.size() || confidences[i] > confidences[best]) best = i;
    }
    if (!any && best < confidences.size()) accept[best] = 1;
    return accept;
}

float mean_entropy(std::span<const float> entropies) {
    if (entropies.empty()) return 0;
    constexpr std::size_t kWidth = 8;  // of its vectors, of which it keeps four sums at a time
    const std::size_t vectors = entropies.size() / kWidth;
    std::array<std::array<float, kWidth>, 4> sums{};
    for (std::size_t v = 0; v < vectors; ++v) {
        // What is left over after groups of four goes to the first sum.
        auto& sum = sums[v < vectors / 4 * 4 ? v % 4 : 0];
        for (std::size_t lane = 0; lane < kWidth; ++lane) sum[lane] += entropies[v * kWidth + lane];
    }
    float total = 0;
    for (std::size_t i = vectors * kWidth; i < entropies.size(); ++i) total += entropies[i];
    for (std::size_t lane = 0; lane < kWidth; ++lane)
        total += sums[0][lane] + sums[1][lane] + sums[2][lane] + sums[3][lane];
    return total / static_cast<float>(entropies.size());
}

}  // namespace dgemma::diffusion
