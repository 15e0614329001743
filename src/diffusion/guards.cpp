#include "diffusion/guards.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dgemma::diffusion {
namespace {

bool contains(std::span<const std::int32_t> ids, std::int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool doubles_neighbour(std::span<const std::int32_t> block, std::size_t i) {
    return (i > 0 && block[i - 1] == block[i]) || (i + 1 < block.size() && block[i + 1] == block[i]);
}

template <class Rule>
std::optional<int> first_cut(std::span<const std::int32_t> block, std::span<const std::int32_t> ends,
                             const Rule& unsure) {
    for (std::size_t i = 0; i < block.size() && !contains(ends, block[i]); ++i)
        if (i >= static_cast<std::size_t>(kFirstTrimmedPosition) && unsure(i)) return static_cast<int>(i);
    return std::nullopt;
}

}  // namespace

std::string_view name_of(Guard guard) { return kGuards[static_cast<std::size_t>(guard)].name; }

float p_max(const RowStats& stats) { return std::exp(stats.max - stats.log_sum_exp); }

bool is_degenerate(std::span<const std::int32_t> canvas, std::span<const std::uint8_t> pinned,
                   std::int32_t pad_id, std::int32_t filler_id) {
    bool any = false;
    for (std::size_t i = 0; i < canvas.size(); ++i) {
        if (pinned[i]) continue;
        if (canvas[i] != pad_id && canvas[i] != filler_id) return false;
        any = true;
    }
    return any;
}

bool entropy_stop(int steps, float mean_entropy) {
    return steps >= kEntropyStopSteps && mean_entropy < kSettledEntropy;
}

bool plateau_stop(int equal_masks, float mean_entropy) {
    return equal_masks >= kPlateauSteps && mean_entropy < kSettledEntropy;
}

bool prefix_exit(int steps, float head_entropy, bool head_unchanged, float tail_entropy) {
    return steps >= kPrefixExitSteps && head_unchanged && head_entropy < kSettledEntropy &&
           tail_entropy >= std::max(2 * kSettledEntropy, kStuckTailEntropy);
}

std::optional<int> confidence_trim(std::span<const std::int32_t> block, std::span<const RowStats> stats,
                                   std::span<const std::int32_t> ends) {
    return first_cut(block, ends, [&](std::size_t i) {
        return p_max(stats[i]) < kConfidenceTrim && doubles_neighbour(block, i);
    });
}

std::optional<int> hard_trim(std::span<const std::int32_t> block, std::span<const RowStats> stats,
                             std::span<const std::int32_t> ends, float floor) {
    return first_cut(block, ends, [&](std::size_t i) { return p_max(stats[i]) < floor; });
}

bool never_settled(std::span<const float> mean_entropies, int max_steps) {
    if (mean_entropies.empty() || mean_entropies.size() < static_cast<std::size_t>(max_steps)) return false;
    const std::size_t late = std::min<std::size_t>(kLateSteps, mean_entropies.size());
    const auto last = mean_entropies.last(late);
    return *std::min_element(last.begin(), last.end()) > kNonconvergenceFloor;
}

bool is_whitespace(std::span<const std::int32_t> ids, const std::function<bool(std::int32_t)>& is_space) {
    return !ids.empty() && std::all_of(ids.begin(), ids.end(), is_space);
}

int reroll_canvas_length(int canvas, int attempt) {
    constexpr int kShortest = 16;
    const int divisor = attempt <= 0 ? 1 : attempt == 1 ? 2 : 4;
    return std::min(canvas, std::max(canvas / divisor, kShortest));
}

}  // namespace dgemma::diffusion
