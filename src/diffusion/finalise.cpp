#include "diffusion/finalise.h"

#include <algorithm>

namespace dgemma::diffusion {

std::optional<int> first_stop(std::span<const std::int32_t> block, std::span<const std::int32_t> stop_ids) {
    const auto found = std::find_first_of(block.begin(), block.end(), stop_ids.begin(), stop_ids.end());
    if (found == block.end()) return std::nullopt;
    return static_cast<int>(found - block.begin());
}

bool finalise(std::span<std::int32_t> block, bool was_finished, std::span<const std::int32_t> stop_ids,
              std::optional<std::int32_t> pad_id) {
    const auto stop = first_stop(block, stop_ids);
    if (!was_finished && !stop) return false;
    if (pad_id) std::fill(block.begin() + (was_finished ? 0 : *stop + 1), block.end(), *pad_id);
    return true;
}

int canvas_length(int full, int remaining, bool shrink) {
    constexpr int kShortest = 64;
    return shrink ? std::min(full, std::max(remaining, kShortest)) : full;
}

int block_count(int tokens, int canvas) {
    if (tokens <= 0 || canvas <= 0) return 0;
    return (tokens - 1) / canvas + 1;
}

}  // namespace dgemma::diffusion
