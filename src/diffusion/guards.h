// The named guards of contract/generation.md 13: rules over the canvas, the rows and the entropies of a
// block. Each is a pure function; Denoiser applies those that end a block, the engine those that judge a
// committed one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "base/row_stats.h"

namespace dgemma::diffusion {

enum class Guard : std::uint8_t {
    degenerate_gate,
    last_step,
    tool_aware_stop,
    empty_reply_reroll,
    entropy_stop,
    plateau_stop,
    confidence_trim,
    hard_trim,
    prefix_exit,
    nonconvergence_reroll,
    whitespace_stop,
};

struct GuardEntry {
    Guard guard;
    std::string_view name;  // as the stats have it
    std::string_view rule;  // one line for help and docs
};

// Every guard, in the order of the enumeration.
inline constexpr std::array<GuardEntry, 11> kGuards = {{
    {Guard::degenerate_gate, "degenerate_gate",
     "a canvas of nothing but pad and filler ids never stops a block"},
    {Guard::last_step, "last_step", "the last step accepts nothing and draws nothing"},
    {Guard::tool_aware_stop, "tool_aware_stop", "a stop id inside an open quoted argument is content"},
    {Guard::empty_reply_reroll, "empty_reply_reroll", "a first block that shows nothing is denoised anew"},
    {Guard::entropy_stop, "entropy_stop", "a mean entropy below 0.05 nats after 12 steps stops a block"},
    {Guard::plateau_stop, "plateau_stop",
     "8 equal accept masks and a mean entropy below 0.05 nats stop a block"},
    {Guard::confidence_trim, "confidence_trim",
     "a block is cut at an unsure token that doubles its neighbour"},
    {Guard::hard_trim, "hard_trim", "a block is cut at a token whose probability is below a floor"},
    {Guard::prefix_exit, "prefix_exit", "a settled first half is committed without the rest"},
    {Guard::nonconvergence_reroll, "nonconvergence_reroll",
     "a block that never settles is denoised anew once"},
    {Guard::whitespace_stop, "whitespace_stop", "a block of nothing but white space ends the turn"},
}};

std::string_view name_of(Guard guard);

// Nats below which a canvas, or its head, counts as settled.
inline constexpr float kSettledEntropy = 0.05f;
inline constexpr int kEntropyStopSteps = 12;
inline constexpr int kPlateauSteps = 8;
inline constexpr int kFirstTrimmedPosition = 16;
inline constexpr float kConfidenceTrim = 0.9f;
inline constexpr int kPrefixExitSteps = 5;
inline constexpr float kStuckTailEntropy = 0.3f;
inline constexpr int kLateSteps = 8;
inline constexpr float kNonconvergenceFloor = 0.2f;

// Probability of the most likely token: exp(max - log_sum_exp), which is 1 / sum exp(zt - max zt).
float p_max(const RowStats& stats);

// True where every id of `canvas` that is not pinned is pad or filler, and there is such an id. `pinned`
// [canvas].
bool is_degenerate(std::span<const std::int32_t> canvas, std::span<const std::uint8_t> pinned,
                   std::int32_t pad_id, std::int32_t filler_id);

// steps: passes run in this block, the present one included.
bool entropy_stop(int steps, float mean_entropy);

// equal_masks: consecutive passes with the present accept mask, the present one included.
bool plateau_stop(int equal_masks, float mean_entropy);

// The head is settled and has the argmax of the pass before, the tail is stuck, at least five passes are run.
bool prefix_exit(int steps, float head_entropy, bool head_unchanged, float tail_entropy);

// Where to cut a committed block, if anywhere: the first position from 16 on and before the first stop, pad
// or filler id (`ends`) whose p_max is below 0.9 and whose argmax equals a neighbour's. What is cut is
// denoised again in the next block. `block`, `stats` [canvas], of the last pass.
std::optional<int> confidence_trim(std::span<const std::int32_t> block, std::span<const RowStats> stats,
                                   std::span<const std::int32_t> ends);

// The same for any position whose p_max is below `floor`, whatever its neighbours are.
std::optional<int> hard_trim(std::span<const std::int32_t> block, std::span<const RowStats> stats,
                             std::span<const std::int32_t> ends, float floor);

// True where a block ran all its steps and the least mean entropy of its last eight is above 0.2 nats.
// `mean_entropies`: one for each pass of the block.
bool never_settled(std::span<const float> mean_entropies, int max_steps);

// True where the ids before the first stop id are some and all white space.
bool is_whitespace(std::span<const std::int32_t> ids, const std::function<bool(std::int32_t)>& is_space);

// Positions of the canvas of attempt 0, 1, 2, ... of an empty reply: C, C/2, C/4, C/4, ...; at least 16 where
// C is.
int reroll_canvas_length(int canvas, int attempt);

}  // namespace dgemma::diffusion
