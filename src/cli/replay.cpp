// `replay`: executes what --record wrote, and says where it comes out differently.
#include "engine/replay.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"
#include "cli/words.h"
#include "files/checkpoint.h"
#include "files/locate.h"

namespace dgemma::cli {

namespace {

void print_json(const engine::ReplayReport& report, std::ostream& out) {
    nlohmann::ordered_json json = {{"runs", report.runs},
                                   {"requests", report.requests},
                                   {"lines", report.lines},
                                   {"cut_off", report.cut_off},
                                   {"same", !report.difference.has_value()}};
    if (report.difference) {
        json["difference"] = {{"line", report.difference->line},
                              {"what", report.difference->what},
                              {"recorded", report.difference->recorded},
                              {"now", report.difference->now}};
    }
    out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void print_text(const engine::ReplayReport& report, std::ostream& out) {
    const std::string done =
        fmt::format("{} in {}", counted(report.requests, "request"), counted(report.lines, "line"));
    if (report.difference) {
        out << fmt::format("line {} differs in {}: recorded {}, now {} ({} were the same before)\n",
                           report.difference->line, report.difference->what, report.difference->recorded,
                           report.difference->now, done);
    } else {
        out << done << ": the same\n";
    }
    if (report.cut_off) out << "the last line is incomplete: whoever wrote it was killed\n";
}

}  // namespace

Result<int> run_replay(const Arguments& arguments, Console& console) {
    if (arguments.words().size() != 1) {
        return Error{ErrorKind::usage, "replay takes the name of one file: one that serve --record wrote."};
    }
    const std::string& file = arguments.words().front();
    DGEMMA_TRY(const engine::RecordHeader header, engine::read_record_header(file));
    std::filesystem::path directory;
    if (!arguments.given(Flag::model) && !header.model.empty()) {
        DGEMMA_TRY(directory, files::locate_model(header.model));
    } else {
        DGEMMA_TRY(directory, chosen_model(arguments));
    }
    DGEMMA_TRY(const files::Checkpoint checkpoint, files::Checkpoint::open(directory));
    if (header.version != DGEMMA_VERSION) {
        console.err << fmt::format("dgemma: note: {} was recorded by version {}, and this is {}.\n",
                                   quote(file), header.version, DGEMMA_VERSION);
    }
    const auto adjust = [&](engine::LoadOptions& load) {
        if (const auto threads = arguments.whole(Flag::threads)) load.threads = static_cast<int>(*threads);
    };
    const auto progress = [&](std::uint64_t lines) {
        if (console.err_is_terminal) console.err << fmt::format("\r{} lines\x1b[K", lines) << std::flush;
    };
    const Result<engine::ReplayReport> report = engine::replay(file, checkpoint, adjust, progress);
    if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
    if (!report) return report.error();
    arguments.on(Flag::json) ? print_json(report.value(), console.out)
                             : print_text(report.value(), console.out);
    return report.value().difference ? 1 : 0;
}

}  // namespace dgemma::cli
