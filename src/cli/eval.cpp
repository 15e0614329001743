// `eval`: a file of prompts with known answers.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/eval_cases.h"
#include "cli/generation_flags.h"
#include "cli/interrupt.h"
#include "cli/model_choice.h"
#include "cli/read_input.h"
#include "cli/verbs.h"
#include "reply/prompt.h"
#include "reply/reading.h"

namespace dgemma::cli {

namespace {

constexpr int answer_tokens = 256;

class AnswerSink : public engine::Sink {
  public:
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override {
        ids_.insert(ids_.end(), event.ids.begin(), event.ids.end());
        return engine::BlockVerdict::go_on;
    }
    [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }

  private:
    std::vector<std::int32_t> ids_;
};

// How far it is: one line that is rewritten on a terminal, else a line now and then.
class Progress {
  public:
    Progress(Console& console, std::size_t total) : console_(console), total_(total) {}

    void show(std::size_t done, const EvalTally& tally) {
        const std::string text =
            fmt::format("{}/{} rows, {} of {} right", done, total_, tally.correct(), tally.cases());
        if (console_.err_is_terminal) {
            console_.err << "\r" << text << "\x1b[K" << std::flush;
        } else if (done % 50 == 0 || done == total_) {
            console_.err << text << "\n" << std::flush;
        }
    }
    ~Progress() {
        if (console_.err_is_terminal) console_.err << "\r\x1b[K" << std::flush;
    }

  private:
    Console& console_;
    std::size_t total_;
};

Result<std::vector<EvalCase>> read_chosen(const std::string& path, Console& console) {
    if (path == "-") return read_cases(console.in, "stdin");
    errno = 0;
    std::ifstream file(path);
    if (!file) {
        return Error{ErrorKind::not_found, fmt::format("The cases file {} of --cases cannot be opened{}.",
                                                       quote(path), system_reason(errno))};
    }
    return read_cases(file, quote(path));
}

Result<std::vector<EvalCase>> chosen_cases(const Arguments& arguments, Console& console) {
    const auto path = arguments.text(Flag::cases);
    if (!path) return Error{ErrorKind::usage, "eval needs a file of cases: --cases FILE.jsonl."};
    DGEMMA_TRY(std::vector<EvalCase> cases, read_chosen(*path, console));
    if (arguments.on(Flag::exact_only)) std::erase_if(cases, [](const EvalCase& one) { return !one.exact; });
    const auto limit = arguments.whole(Flag::limit);
    if (limit && *limit < cases.size()) cases.resize(*limit);
    if (cases.empty()) {
        return Error{ErrorKind::invalid,
                     fmt::format("{} of --cases holds no rows to run.", Inputs::name_of(*path))};
    }
    return cases;
}

}  // namespace

Result<int> run_eval(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const std::vector<EvalCase> cases, chosen_cases(arguments, console));
    std::ofstream rows;
    if (const auto path = arguments.text(Flag::rows)) {
        std::error_code error;
        if (std::filesystem::equivalent(*path, arguments.text(Flag::cases).value_or(""), error)) {
            return Error{ErrorKind::usage,
                         "--rows names the file of --cases, which it would overwrite; name another file."};
        }
        errno = 0;
        rows.open(*path);
        if (!rows) {
            return Error{ErrorKind::io, fmt::format("The file {} of --rows cannot be written{}.",
                                                    quote(*path), system_reason(errno))};
        }
    }
    DGEMMA_TRY(OpenModel model, open_model(arguments));
    warn_of_unexpected(*model.checkpoint, console.err);
    DGEMMA_TRY(engine::Request request, request_of(arguments, model.generator->default_options()));
    request.max_tokens = answer_tokens;
    const InterruptGuard interrupt;
    request.cancel = &interrupt.flag();

    EvalTally tally;
    const auto start = std::chrono::steady_clock::now();
    {
        Progress progress(console, cases.size());
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const EvalCase& asked = cases[i];
            const reply::Prompt prompt = reply::raw_prompt(model.tokenizer, asked.prompt);
            request.prompt = prompt.ids;
            reply::answer_guards(request, model.tokenizer, prompt.ends_in_thought);
            AnswerSink sink;
            Result<engine::EndEvent> result = model.generator->generate(request, sink);
            if (!result) {
                Error error = std::move(result).error();
                error.message = fmt::format("Row {}: {}", asked.row, error.message);
                return error;
            }
            const engine::EndEvent& end = result.value();
            if (end.reason == engine::FinishReason::cancelled) return interrupt.exit_code();
            EvalAnswer answer;
            answer.text = model.tokenizer.decode(sink.ids(), false);
            if (end.stop_id) answer.stop = std::string(model.tokenizer.token(*end.stop_id));
            answer.steps = end.stats.steps;
            answer.blocks = static_cast<int>(end.stats.blocks.size());
            answer.tokens = end.stats.output_tokens;
            tally.add(asked, answer);
            errno = 0;
            // At once, so that a full disk is noticed here and not after hours.
            if (rows.is_open() && !(rows << row_json(asked, answer) << std::endl)) {
                return Error{ErrorKind::io,
                             fmt::format("Row {} could not be written to {}{}.", asked.row,
                                         quote(*arguments.text(Flag::rows)), system_reason(errno))};
            }
            progress.show(i + 1, tally);
        }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    console.out << (arguments.on(Flag::json) ? tally.json(seconds) + "\n" : tally.table(seconds));
    return 0;
}

}  // namespace dgemma::cli
