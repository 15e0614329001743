// The named guards of diffusion/guards.h as words of the command line.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "diffusion/options.h"

namespace dgemma::cli {

// The names of diffusion::kGuards, in its order.
std::span<const std::string_view> guard_names();

// Turns a guard on: NAME, or NAME=VALUE for the two that have a number (empty_reply_reroll=N,
// hard_trim=FLOOR). A dash in a name counts as an underscore. Errors: usage, written to follow the name of a
// flag.
Status turn_on(diffusion::Guards& guards, std::string_view text);

// Turns a guard off; "all" turns every one off. Errors: usage, as above.
Status turn_off(diffusion::Guards& guards, std::string_view name);

}  // namespace dgemma::cli
