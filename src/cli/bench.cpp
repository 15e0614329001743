// `bench`: how fast a model runs on this machine, and what of the machine's own peak that is.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/generation_flags.h"
#include "cli/machine.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"
#include "cli/words.h"
#include "engine/measure.h"

namespace dgemma::cli {

namespace {

using backend::Arithmetic;
using backend::Stage;

nlohmann::ordered_json json_of(const engine::Measurement& m, const Machine& machine, int threads) {
    nlohmann::ordered_json out;
    out["load_s"] = m.load_seconds;
    out["prefill_s"] = m.prefill_seconds;
    out["prefill_tokens_per_s"] = m.prefill_tokens_per_second;
    out["step_ms"] = m.median_step_ms;
    out["steps_ms"] = m.step_ms;
    for (std::size_t s = 0; s < backend::kStages; ++s) {
        out["stage_ms"][std::string(backend::name_of(static_cast<Stage>(s)))] = m.stage_ms[s];
    }
    out["peak_rss_bytes"] = m.peak_rss_bytes;
    out["gflops"] = 2 * m.giga_multiply_adds_per_second;
    out["peak_fraction"] = m.peak_fraction;
    for (std::size_t i = 0; i < backend::kArithmetics; ++i) {
        const std::string name(backend::name_of(static_cast<Arithmetic>(i)));
        out["multiply_adds"][name] = m.multiply_adds[i];
        out["machine_peak_multiply_adds_per_s"][name] = m.peaks[i];
    }
    out["experts_touched"] = m.fewest_experts;
    out["largest_expert_rows"] = m.most_expert_rows;
    out["soft_entries_per_row"] = m.soft_entries_per_row;
    out["machine"] = {{"processor", machine.processor},
                      {"instruction_sets", machine.instruction_sets},
                      {"physical_cores", machine.physical_cores},
                      {"threads", threads}};
    return out;
}

void print_text(const engine::Measurement& m, std::ostream& out) {
    out << fmt::format("load                {:.2f} s\n", m.load_seconds);
    out << fmt::format("prefill             {:.1f} tokens/s ({:.2f} s)\n", m.prefill_tokens_per_second,
                       m.prefill_seconds);
    out << fmt::format("denoise step        {:.2f} ms (median, the first step left out)\n", m.median_step_ms);
    for (std::size_t s = 0; s < backend::kStages; ++s) {
        if (m.stage_ms[s] == 0) continue;  // not measured
        out << fmt::format("  {:<18}{:.1f} ms\n", backend::name_of(static_cast<Stage>(s)), m.stage_ms[s]);
    }
    if (m.peak_fraction > 0) {
        out << fmt::format("arithmetic          {:.0f} GFLOP/s, {:.0f} % of this machine's peak\n",
                           2 * m.giga_multiply_adds_per_second, 100 * m.peak_fraction);
    }
    for (std::size_t i = 0; i < backend::kArithmetics; ++i) {
        if (m.peaks[i] == 0) continue;
        out << fmt::format("  {:<18}{:.1f} G multiply-adds a step; peak {:.0f} G/s\n",
                           backend::name_of(static_cast<Arithmetic>(i)), m.multiply_adds[i] / 1e9,
                           m.peaks[i] / 1e9);
    }
    out << fmt::format("experts             {} or more in every layer, at most {} rows for one\n",
                       m.fewest_experts, m.most_expert_rows);
    if (m.soft_entries_per_row > 0) {
        out << fmt::format("self-conditioning   {:.0f} vocabulary entries a row\n", m.soft_entries_per_row);
    }
    out << fmt::format("peak memory         {}\n", bytes_text(static_cast<std::uint64_t>(m.peak_rss_bytes)));
}

}  // namespace

Result<int> run_bench(const Arguments& arguments, Console& console) {
    const bool synthetic = arguments.given(Flag::preset);
    if (!synthetic && (arguments.given(Flag::format) || arguments.given(Flag::layers))) {
        return Error{
            ErrorKind::usage,
            "--format and --layers describe the random weights that --preset makes: add --preset 26b"};
    }
    if (synthetic && arguments.given(Flag::model)) {
        return Error{ErrorKind::usage,
                     "--preset measures random weights, and --model names a model: leave out "
                     "one of them"};
    }
    std::optional<files::Checkpoint> checkpoint;
    if (!synthetic) {
        DGEMMA_TRY(const std::filesystem::path model, chosen_model(arguments));
        DGEMMA_TRY(checkpoint, files::Checkpoint::open(model));
    }
    if (arguments.text(Flag::canvas_length) == "shrink") {
        return Error{ErrorKind::usage,
                     fmt::format("{} shrink means nothing to bench, which measures one whole canvas; give a "
                                 "number, or leave it out.",
                                 arguments.source(Flag::canvas_length))};
    }
    engine::MeasureOptions options;
    options.prompt_tokens =
        arguments.whole_or(Flag::context, arguments.whole_or(Flag::prompt_tokens, options.prompt_tokens));
    options.batch = arguments.whole_or(Flag::batch, options.batch);
    options.steps = arguments.whole_or(Flag::steps, options.steps);
    options.canvas_length = arguments.whole_or(Flag::canvas_length, 0);
    if (arguments.text(Flag::self_conditioning) == "sparse") options.soft_cutoff = engine::kSparseCutoff;
    options.seed = arguments.whole(Flag::seed).value_or(0);
    options.progress = [&](const char* what, int done, int total) {
        if (console.err_is_terminal)
            console.err << fmt::format("\r{} {}/{}\x1b[K", what, done, total) << std::flush;
    };
    const engine::LoadOptions load = load_options(arguments);
    const Result<engine::Measurement> measured =
        synthetic ? engine::measure_synthetic(arguments.text(Flag::preset).value_or("26b"),
                                              arguments.whole_or(Flag::layers, 0),
                                              arguments.text(Flag::format).value_or("bf16"), load, options)
                  : engine::measure(*checkpoint, load, options);
    if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
    if (!measured) return measured.error();
    if (checkpoint) warn_of_unexpected(*checkpoint, console.err);
    if (arguments.on(Flag::json)) {
        const Machine machine = inspect_machine();
        console.out
            << json_of(*measured, machine, arguments.whole_or(Flag::threads, machine.physical_cores)).dump()
            << "\n";
    } else {
        print_text(*measured, console.out);
    }
    return 0;
}

}  // namespace dgemma::cli
