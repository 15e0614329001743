#include "cli/guards.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/nearest.h"
#include "cli/words.h"
#include "diffusion/guards.h"

namespace dgemma::cli {

namespace {

using diffusion::Guard;
using diffusion::Guards;
using diffusion::kGuards;

constexpr std::uint64_t most_rerolls = 16;

// The guard of that name. A dash counts as an underscore: flags are typed with dashes.
Result<Guard> guard_named(std::string_view text) {
    std::string name(text);
    std::replace(name.begin(), name.end(), '-', '_');
    for (const auto& entry : kGuards) {
        if (entry.name == name) return entry.guard;
    }
    const auto near = nearest(name, guard_names());
    if (near) {
        return Error{ErrorKind::usage,
                     fmt::format("knows no guard {}; did you mean {}?", quote(text), *near)};
    }
    return Error{ErrorKind::usage, fmt::format("knows no guard {}; the guards are {}.", quote(text),
                                               fmt::join(guard_names(), ", "))};
}

void set(Guards& guards, Guard guard, bool on) {
    switch (guard) {
        case Guard::degenerate_gate:
            guards.degenerate_gate = on;
            return;
        case Guard::last_step:
            guards.last_step = on;
            return;
        case Guard::tool_aware_stop:
            guards.tool_aware_stop = on;
            return;
        case Guard::empty_reply_reroll:
            guards.empty_reply_rerolls = on ? Guards().empty_reply_rerolls : 0;
            return;
        case Guard::entropy_stop:
            guards.entropy_stop = on;
            return;
        case Guard::plateau_stop:
            guards.plateau_stop = on;
            return;
        case Guard::confidence_trim:
            guards.confidence_trim = on;
            return;
        case Guard::hard_trim:
            guards.hard_trim = on;
            return;
        case Guard::prefix_exit:
            guards.prefix_exit = on;
            return;
        case Guard::nonconvergence_reroll:
            guards.nonconvergence_reroll = on;
            return;
        case Guard::whitespace_stop:
            guards.whitespace_stop = on;
            return;
    }
}

}  // namespace

std::span<const std::string_view> guard_names() {
    static const auto names = [] {
        std::array<std::string_view, kGuards.size()> out;
        std::transform(kGuards.begin(), kGuards.end(), out.begin(),
                       [](const auto& entry) { return entry.name; });
        return out;
    }();
    return names;
}

Status turn_on(Guards& guards, std::string_view text) {
    const std::size_t equals = text.find('=');
    DGEMMA_TRY(const Guard guard, guard_named(text.substr(0, equals)));
    if (equals != std::string_view::npos) {
        const std::string_view value = text.substr(equals + 1);
        if (guard == Guard::empty_reply_reroll) {
            const auto count = read_whole(value);
            if (!count || *count > most_rerolls) {
                return Error{ErrorKind::usage,
                             fmt::format("empty_reply_reroll takes a whole number from 0 to {}, not {}.",
                                         most_rerolls, quote(value))};
            }
            guards.empty_reply_rerolls = static_cast<int>(*count);
            return {};
        }
        if (guard != Guard::hard_trim) {
            return Error{ErrorKind::usage, fmt::format("{} takes no value; leave out {}.",
                                                       text.substr(0, equals), quote(text.substr(equals)))};
        }
        const auto floor = read_real(value);
        if (!floor || *floor <= 0 || *floor > 1) {
            return Error{ErrorKind::usage,
                         fmt::format("hard_trim takes a number above 0, at most 1, not {}.", quote(value))};
        }
        guards.hard_trim_floor = static_cast<float>(*floor);
    }
    set(guards, guard, true);
    return {};
}

Status turn_off(Guards& guards, std::string_view name) {
    if (name == "all") {
        guards = Guards::none();
        return {};
    }
    DGEMMA_TRY(const Guard guard, guard_named(name));
    set(guards, guard, false);
    return {};
}

}  // namespace dgemma::cli
