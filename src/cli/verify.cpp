// `verify`: does a device compute what the CPU computes, stage by stage; and the published model what is
// published of it?
#include "engine/verify.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "cli/generation_flags.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"
#include "cli/verify_published.h"
#include "files/mapping.h"
#include "files/safetensors_writer.h"

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

constexpr std::string_view kFigures = "figures.json";

// A directory that is not there, is empty, or holds an earlier dump.
Status prepare_dump(const std::filesystem::path& directory) {
    std::error_code problem;
    std::filesystem::create_directories(directory, problem);
    if (problem || !std::filesystem::is_directory(directory)) {
        return Error{ErrorKind::io, fmt::format("{} cannot be made a directory; check the path.",
                                                quote(directory.string()))};
    }
    if (std::filesystem::is_empty(directory, problem) || files::is_there(directory / kFigures)) return {};
    return Error{
        ErrorKind::usage,
        fmt::format("{} holds other files; give --dump a directory that is to be made, or an earlier dump's.",
                    quote(directory.string()))};
}

Status write_values(const std::filesystem::path& file, const engine::AllValues& values) {
    std::map<std::string, files::F32Tensor> tensors;
    for (const auto& [name, stage] : values) {
        const auto count = static_cast<std::int64_t>(stage.values.size());
        tensors[name] = {{stage.rows, count / std::max<std::int64_t>(1, stage.rows)}, stage.values};
    }
    return files::write_safetensors(file, tensors);
}

Status write_dump(const std::filesystem::path& directory, const nlohmann::ordered_json& figures,
                  const engine::Verification& done) {
    DGEMMA_CHECK(write_values(directory / "device.safetensors", done.device_values));
    DGEMMA_CHECK(write_values(directory / "cpu.safetensors", done.cpu_values));
    std::ofstream out(directory / kFigures);
    out << figures.dump(1) << "\n";
    if (out.flush()) return {};
    return Error{ErrorKind::io, fmt::format("{} cannot be written; check the room on the disk.",
                                            quote((directory / kFigures).string()))};
}

Status whole_fits(const files::Checkpoint& checkpoint, const Arguments& arguments) {
    if (auto fit = fit_for_loading(checkpoint, arguments); !fit) return std::move(fit).error();
    return {};
}

}  // namespace

Result<int> run_verify(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const std::filesystem::path model, chosen_model(arguments));
    DGEMMA_TRY(const files::Checkpoint checkpoint, files::Checkpoint::open(model));
    DGEMMA_TRY(const model::Config config, model::read_config(checkpoint));
    const auto dump = arguments.text(Flag::dump);
    if (dump) DGEMMA_CHECK(prepare_dump(*dump));
    engine::VerifyOptions options;
    options.device = load_options(arguments);
    options.scalar = arguments.on(Flag::scalar);
    options.layers = arguments.whole_or(Flag::layers, 0);
    options.seed = arguments.whole(Flag::seed).value_or(0);
    options.keep_values = dump.has_value();
    const auto clear = [&] {
        if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
    };
    options.progress = [&](const std::string& what) {
        if (console.err_is_terminal) console.err << fmt::format("\r{}\x1b[K", what) << std::flush;
    };
    std::optional<Published> published;
    if (engine::has_published_shapes(config, checkpoint)) {
        DGEMMA_TRY(published,
                   compare_published(checkpoint, config, options, whole_fits(checkpoint, arguments)));
        clear();
        if (!arguments.on(Flag::json)) print_text(*published, console.out << std::flush);
    }
    const Result<engine::Verification> done = engine::verify(checkpoint, options);
    clear();
    if (!done) return done.error();
    nlohmann::ordered_json figures = json_of(*done);
    if (published) figures["published"] = json_of(*published);
    if (dump) DGEMMA_CHECK(write_dump(*dump, figures, *done));
    if (arguments.on(Flag::json)) {
        console.out << figures.dump() << "\n";
    } else {
        print_text(*done, options.scalar, console.out);
    }
    std::int64_t broken = published && published->comparison ? published->comparison->broken : 0;
    for (const engine::StageDifference& d : done->stages) broken += d.broken;
    return broken > 0 ? 1 : 0;
}

}  // namespace dgemma::cli
