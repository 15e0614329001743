// What becomes of a denoised block: stop ids, pads, and how many positions and blocks there are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace dgemma::diffusion {

// Position of the first id of `block` that is one of `stop_ids` (contract/generation.md 7).
std::optional<int> first_stop(std::span<const std::int32_t> block, std::span<const std::int32_t> stop_ids);

// The rule of the reference for one row of a batch (contract/generation.md 7): a row that finished in an
// earlier block becomes pads altogether; otherwise everything after its first stop id does, and the stop id
// stays. Without a pad id nothing is overwritten. -> whether the row is finished now.
bool finalise(std::span<std::int32_t> block, bool was_finished, std::span<const std::int32_t> stop_ids,
              std::optional<std::int32_t> pad_id);

// Positions of the next block's canvas when `remaining` tokens are still wanted (contract/generation.md 8):
// the full canvas, or with `shrink` min(full, max(remaining, 64)).
int canvas_length(int full, int remaining, bool shrink);

// Whole canvases that cover `tokens` (contract/generation.md 1).
int block_count(int tokens, int canvas);

}  // namespace dgemma::diffusion
