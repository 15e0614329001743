#include "diffusion/options.h"

#include <array>
#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "diffusion/schedule.h"

namespace dgemma::diffusion {
namespace {

constexpr std::array kSamplers = {
    std::pair{Sampler::entropy_bound, std::string_view("entropy-bound")},
    std::pair{Sampler::confidence_threshold, std::string_view("confidence-threshold")},
};
constexpr std::array kNoises = {
    std::pair{Noise::counter, std::string_view("counter")},
    std::pair{Noise::mlx, std::string_view("mlx")},
    std::pair{Noise::torch_cpu, std::string_view("torch-cpu")},
};

template <class Table, class Value>
std::string_view name_in(const Table& table, Value value) {
    for (const auto& [known, name] : table)
        if (known == value) return name;
    return "?";
}

template <class Value, class Table>
std::optional<Value> value_in(const Table& table, std::string_view name) {
    for (const auto& [value, known] : table)
        if (known == name) return value;
    return std::nullopt;
}

Error outside(std::string_view option, double value, std::string_view range) {
    return {ErrorKind::usage, fmt::format("{} is {}; it must be {}", option, value, range)};
}

bool positive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

std::string_view name_of(Sampler sampler) { return name_in(kSamplers, sampler); }
std::string_view name_of(Noise noise) { return name_in(kNoises, noise); }
std::optional<Sampler> sampler_named(std::string_view name) { return value_in<Sampler>(kSamplers, name); }
std::optional<Noise> noise_named(std::string_view name) { return value_in<Noise>(kNoises, name); }

Guards Guards::none() {
    Guards guards;
    guards.degenerate_gate = false;
    guards.last_step = false;
    guards.tool_aware_stop = false;
    guards.empty_reply_rerolls = 0;
    return guards;
}

Status check(const Options& o) {
    if (o.max_steps < 1) return outside("max_steps", o.max_steps, "at least 1");
    if (!positive(o.entropy_bound))
        return outside("entropy_bound", o.entropy_bound, "a number above 0 (nats)");
    if (!(o.threshold > 0 && o.threshold <= 1))
        return outside("threshold", o.threshold, "above 0 and at most 1");
    if (!std::isfinite(o.t_min) || o.t_min < 0) return outside("t_min", o.t_min, "a number of at least 0");
    if (!std::isfinite(o.t_max) || o.t_max <= o.t_min)
        return Error{ErrorKind::usage, fmt::format("t_max is {} and t_min {}; t_max must be the greater one",
                                                   o.t_max, o.t_min)};
    // Logits are divided by it: a schedule that leaves the range of f32 would turn all of them into
    // infinities.
    if (!positive(temperature(1, o.max_steps, o.t_min, o.t_max)) ||
        !positive(temperature(o.max_steps, o.max_steps, o.t_min, o.t_max)))
        return Error{
            ErrorKind::usage,
            fmt::format("t_min {} and t_max {} leave the range of 32-bit floats; choose t_max near 0.8",
                        o.t_min, o.t_max)};
    if (o.stability_threshold < 0) return outside("stability_threshold", o.stability_threshold, "at least 0");
    if (!positive(o.confidence_threshold))
        return outside("confidence_threshold", o.confidence_threshold, "a number above 0 (nats)");
    if (!std::isfinite(o.temperature) || o.temperature < 0)
        return outside("temperature", o.temperature,
                       "a number of at least 0 (0 takes the most likely token)");
    if (o.guards.empty_reply_rerolls < 0)
        return outside("empty_reply_rerolls", o.guards.empty_reply_rerolls, "at least 0");
    if (!(o.guards.hard_trim_floor >= 0 && o.guards.hard_trim_floor <= 1))
        return outside("hard_trim_floor", o.guards.hard_trim_floor, "between 0 and 1");
    return {};
}

}  // namespace dgemma::diffusion
