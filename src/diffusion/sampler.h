// Which positions of a canvas a step keeps: pure functions over what the head said of each row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dgemma::diffusion {

// contract/generation.md 4. In ascending order of entropy (ties by position), position k is kept where the
// entropies before it sum to at most `bound` nats; the sum runs in f32 and includes k before h_k is taken off
// again. The lowest entropy is always kept. -> [n], 1 where kept. Entropies must be finite.
std::vector<std::uint8_t> entropy_bound_mask(std::span<const float> entropies, float bound);

// contract/generation.md 5. Keeps the unrevealed positions with a confidence of at least `threshold`, or,
// where there are none, the single most confident unrevealed one (the first of equals). -> [n], 1 where kept.
std::vector<std::uint8_t> confidence_threshold_mask(std::span<const float> confidences,
                                                    std::span<const std::uint8_t> revealed, float threshold);

// The f32 mean of the reference: torch on CPU sums in 32 interleaved lanes, folds them by fours and then adds
// the eight left one after another. 0 for no values.
float mean_entropy(std::span<const float> entropies);

}  // namespace dgemma::diffusion
