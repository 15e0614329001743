#include "cli/generation_flags.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/guards.h"

namespace dgemma::cli {

engine::LoadOptions load_options(const Arguments& arguments) {
    engine::LoadOptions options;
    options.backend = arguments.text(Flag::backend) == "reference" ? engine::BackendKind::reference
                                                                   : engine::BackendKind::plain;
    const std::string precision =
        arguments.text(Flag::precision).value_or(arguments.on(Flag::exact) ? "f32" : "mixed");
    options.precision = precision == "bf16"    ? backend::Precision::bf16
                        : precision == "mixed" ? backend::Precision::mixed
                                               : backend::Precision::f32;
    // Asking for a way the CPU computes asks for the CPU.
    options.where =
        arguments.text(Flag::device)
            .value_or(arguments.given(Flag::backend) || arguments.given(Flag::cpu_isa) ? "cpu" : "auto");
    options.vram = arguments.whole(Flag::vram).value_or(0) << 20;
    if (const auto kv = arguments.text(Flag::kv)) {
        options.kv = *kv == "f32" ? Dtype::f32 : *kv == "f16" ? Dtype::f16 : Dtype::bf16;
    }
    options.cpu_isa = arguments.text(Flag::cpu_isa).value_or("");
    options.pin = arguments.on(Flag::pin);
    options.threads = arguments.whole_or(Flag::threads, 0);
    options.context = arguments.whole_or(Flag::ctx, 0);
    return options;
}

Result<engine::Request> request_of(const Arguments& arguments, const diffusion::Options& defaults) {
    engine::Request request;
    request.diffusion = defaults;
    diffusion::Options& options = request.diffusion;
    if (const auto name = arguments.text(Flag::sampler)) {
        options.sampler = diffusion::sampler_named(*name).value_or(options.sampler);
    }
    if (const auto name = arguments.text(Flag::noise)) {
        options.noise = diffusion::noise_named(*name).value_or(options.noise);
    }
    options.max_steps = arguments.whole_or(Flag::steps, options.max_steps);
    options.seed = arguments.whole(Flag::seed).value_or(options.seed);
    const auto set = [&](Flag flag, float& value) {
        if (const auto number = arguments.real(flag)) value = static_cast<float>(*number);
    };
    set(Flag::entropy_bound, options.entropy_bound);
    set(Flag::threshold, options.threshold);
    set(Flag::confidence_threshold, options.confidence_threshold);
    set(Flag::temperature, options.temperature);
    request.max_tokens = arguments.whole_or(Flag::max_tokens, 0);
    request.canvas_length = arguments.whole_or(Flag::canvas_length, 0);
    request.shrink_canvas =
        arguments.on(Flag::shrink_canvas) || arguments.text(Flag::canvas_length) == "shrink";
    request.exact = arguments.on(Flag::exact);
    if (arguments.text(Flag::self_conditioning) == "sparse") request.soft_cutoff = engine::kSparseCutoff;
    if (request.exact && arguments.given(Flag::guard)) {
        return Error{
            ErrorKind::usage,
            fmt::format("--exact turns every guard off, and --guard {} turns one on; leave out one of them.",
                        arguments.list(Flag::guard).front())};
    }
    // Off first, so that --no-guard all --guard x means x alone.
    for (const std::string& name : arguments.list(Flag::no_guard))
        DGEMMA_CHECK(turn_off(options.guards, name));
    for (const std::string& name : arguments.list(Flag::guard)) DGEMMA_CHECK(turn_on(options.guards, name));
    DGEMMA_CHECK(diffusion::check(options));
    return request;
}

}  // namespace dgemma::cli
