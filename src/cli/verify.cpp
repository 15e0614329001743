// `verify`: does a device compute what the CPU computes, stage by stage?
#include "engine/verify.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "cli/generation_flags.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"

namespace dgemma::cli {

namespace {

nlohmann::ordered_json json_of(const engine::Verification& v) {
    nlohmann::ordered_json out;
    out["device"] = v.device;
    out["layers"] = v.layers;
    out["all_layers"] = v.all_layers;
    for (const engine::StageDifference& d : v.stages) {
        out["stages"].push_back({{"pass", d.pass},
                                 {"stage", d.stage},
                                 {"worst_layer", d.layer},
                                 {"largest", d.largest},
                                 {"relative_rms", d.relative_rms},
                                 {"cosine", d.cosine},
                                 {"not_finite", d.broken}});
    }
    for (const engine::HeadDifference& d : v.heads) {
        out["head"].push_back({{"pass", d.pass},
                               {"argmax_agreement", d.argmax_agreement},
                               {"mean_kl", d.mean_kl},
                               {"largest_kl", d.largest_kl},
                               {"largest_entropy_difference", d.entropy}});
    }
    return out;
}

void print_text(const engine::Verification& v, bool scalar, std::ostream& out) {
    out << fmt::format("{} of {} layers, {} against {} in f32\n\n", v.layers, v.all_layers, v.device,
                       scalar ? "the scalar oracle" : "the CPU");
    out << fmt::format("{:<9}{:<12}{:>6}{:>14}{:>14}{:>12}\n", "pass", "stage", "worst", "largest",
                       "relative", "cosine");
    out << fmt::format("{:<9}{:<12}{:>6}{:>14}{:>14}\n", "", "", "layer", "difference", "rms");
    for (const engine::StageDifference& d : v.stages) {
        out << fmt::format("{:<9}{:<12}{:>6}{:>14.3e}{:>14.3e}{:>12.6f}{}\n", d.pass, d.stage,
                           d.layer < 0 ? "" : std::to_string(d.layer), d.largest, d.relative_rms, d.cosine,
                           d.broken > 0 ? fmt::format("  {} numbers are not finite", d.broken) : "");
    }
    out << fmt::format("\n{:<9}{:>8}{:>14}{:>14}{:>14}\n", "pass", "argmax", "mean KL", "largest KL",
                       "entropy");
    for (const engine::HeadDifference& d : v.heads) {
        out << fmt::format("{:<9}{:>7.1f}%{:>14.3e}{:>14.3e}{:>14.3e}\n", d.pass, 100 * d.argmax_agreement,
                           d.mean_kl, d.largest_kl, d.entropy);
    }
}

}  // namespace

Result<int> run_verify(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const std::filesystem::path model, chosen_model(arguments));
    DGEMMA_TRY(const files::Checkpoint checkpoint, files::Checkpoint::open(model));
    engine::VerifyOptions options;
    options.device = load_options(arguments);
    options.scalar = arguments.on(Flag::scalar);
    options.layers = arguments.whole_or(Flag::layers, 0);
    options.seed = arguments.whole(Flag::seed).value_or(0);
    options.progress = [&](const std::string& what) {
        if (console.err_is_terminal) console.err << fmt::format("\r{}\x1b[K", what) << std::flush;
    };
    const Result<engine::Verification> done = engine::verify(checkpoint, options);
    if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
    if (!done) return done.error();
    if (const auto file = arguments.text(Flag::dump)) {
        std::ofstream out(*file);
        out << json_of(*done).dump(1) << "\n";
        if (!out.flush())
            return Error{ErrorKind::io, fmt::format("{} cannot be written; check the path.", quote(*file))};
    }
    if (arguments.on(Flag::json)) {
        console.out << json_of(*done).dump() << "\n";
    } else {
        print_text(*done, options.scalar, console.out);
    }
    for (const engine::StageDifference& d : done->stages) {
        if (d.broken > 0) return 1;
    }
    return 0;
}

}  // namespace dgemma::cli
