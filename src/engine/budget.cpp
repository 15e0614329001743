#include "engine/budget.h"

#include <algorithm>
#include <cstdint>

#include <fmt/core.h>

#include "diffusion/finalise.h"

namespace dgemma::engine {

namespace {

// Positions of all canvases of a reply of `tokens`.
std::int64_t canvas_positions(int tokens, int canvas, bool shrink) {
    std::int64_t positions = 0;
    for (int remaining = tokens; remaining > 0; remaining -= canvas) {
        positions += diffusion::canvas_length(canvas, remaining, shrink);
    }
    return positions;
}

}  // namespace

Result<Budget> plan_budget(int prompt_tokens, int wanted, int canvas, bool shrink, int context) {
    const int left = context - prompt_tokens;
    const int smallest = diffusion::canvas_length(canvas, 1, shrink);
    if (left < smallest) {
        return Error{
            ErrorKind::context_length,
            fmt::format(
                "the prompt has {} tokens, and with a canvas of {} that is more than the context of {}: "
                "shorten the prompt, take a smaller canvas (--canvas-length; of a server's request "
                "diffusion.canvas_length) or raise the context with --ctx",
                prompt_tokens, smallest, context)};
    }
    if (wanted == 0) {
        const int whole = left / canvas * canvas;
        const int tokens = std::min(kDefaultMaxTokens, std::max(whole, smallest));
        return Budget{tokens, static_cast<int>(prompt_tokens + canvas_positions(tokens, canvas, shrink))};
    }
    const std::int64_t positions = canvas_positions(wanted, canvas, shrink);
    if (positions > left) {
        return Error{
            ErrorKind::context_length,
            fmt::format(
                "{} tokens of reply take up {} positions in whole canvases of {}, and with a prompt of {} "
                "tokens that is more than the context of {}: ask for at most {} tokens, shorten the "
                "prompt, take a smaller canvas (--canvas-length; of a server's request "
                "diffusion.canvas_length) or raise the context with --ctx",
                wanted, positions, canvas, prompt_tokens, context,
                std::max(left / canvas * canvas, smallest))};
    }
    return Budget{wanted, static_cast<int>(prompt_tokens + positions)};
}

}  // namespace dgemma::engine
