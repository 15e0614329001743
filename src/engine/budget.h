// How many tokens a request may produce in the context it has (contract/generation.md 1 and 8).
#pragma once

#include "base/result.h"

namespace dgemma::engine {

struct Budget {
    int max_tokens = 0;  // of this reply, at least 1
    int positions = 0;   // that prompt and whole canvases take up
};

// A reply without a limit of its own ends here.
inline constexpr int kDefaultMaxTokens = 4096;

// wanted: max_tokens of the request, 0 for kDefaultMaxTokens or what the context leaves. A canvas is denoised
// whole, so its positions count even where its tail is trimmed. Errors: context_length, with the numbers.
Result<Budget> plan_budget(int prompt_tokens, int wanted, int canvas, bool shrink, int context);

}  // namespace dgemma::engine
