// `ask`: one prompt, one reply.
#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/ask_prompt.h"
#include "cli/generation_flags.h"
#include "cli/interrupt.h"
#include "cli/json_events.h"
#include "cli/model_choice.h"
#include "cli/terminal.h"
#include "cli/text_view.h"
#include "cli/verbs.h"
#include "cli/words.h"
#include "reply/reading.h"
#include "reply/reply_sink.h"

namespace dgemma::cli {

namespace {

// At most 30 frames a second: more cannot be seen, and a terminal can be slow.
constexpr std::chrono::milliseconds frame_time{33};

// What a reader of text should know that the text does not say.
void note(Console& console, const engine::EndEvent& end, const text::ParsedReply& reply) {
    for (const std::string& reason : reply.broken_calls) {
        console.err << fmt::format("dgemma: note: a tool call is broken ({}) and shown as text\n", reason);
    }
    if (end.reason == engine::FinishReason::length) {
        console.err << fmt::format(
            "dgemma: note: the reply was cut after {} tokens; --max-tokens and --ctx allow more\n",
            end.stats.output_tokens);
    } else if (end.reason != engine::FinishReason::cancelled && text::shows_nothing(reply)) {
        console.err << (end.reason == engine::FinishReason::stop_string
                            ? "dgemma: note: the reply is empty: it begins with the text of --stop\n"
                            : "dgemma: note: the reply is empty; another --seed may help\n");
    }
}

void show_stats(Console& console, const engine::Stats& stats, double load_ms) {
    console.err << fmt::format(
        "load {:.0f} ms; prompt {} tokens in {:.0f} ms; reply {} tokens in {}, {}, {:.0f} ms; "
        "{:.1f} tokens/s end to end\n",
        load_ms, stats.prompt_tokens, stats.prefill_ms, stats.output_tokens,
        counted(stats.blocks.size(), "block"), counted(static_cast<std::uint64_t>(stats.steps), "step"),
        stats.denoise_ms, stats.tokens_per_second());
    for (std::size_t i = 0; i < stats.blocks.size(); ++i) {
        const engine::BlockStats& block = stats.blocks[i];
        std::string line = fmt::format(
            "block {}: {}, {}, {} trimmed", i + 1, counted(static_cast<std::uint64_t>(block.steps), "step"),
            block.stop_rule, counted(static_cast<std::uint64_t>(block.trimmed), "position"));
        if (block.attempts > 1) line += fmt::format(", {} attempts", block.attempts);
        if (!block.guards.empty()) line += fmt::format(", guards: {}", fmt::join(block.guards, ", "));
        console.err << line << "\n";
    }
    if (!stats.approximations.empty()) {
        console.err << fmt::format("approximations: {}\n", fmt::join(stats.approximations, ", "));
    }
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<int> run_ask(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const AskInput input, read_ask_input(arguments, console));
    const auto start = std::chrono::steady_clock::now();
    DGEMMA_TRY(const OpenModel model, open_model(arguments));
    const double load_ms = milliseconds_since(start);
    warn_of_unexpected(*model.checkpoint, console.err);
    DGEMMA_TRY(const text::TemplateRevision revision, input.raw
                                                          ? text::TemplateRevision::canonical
                                                          : template_of(model.checkpoint->path(), arguments));
    DGEMMA_TRY(reply::Prompt prompt, encode_ask(input, arguments, revision, model.tokenizer));
    DGEMMA_TRY(engine::Request request, request_of(arguments, model.generator->default_options()));
    request.prompt = std::move(prompt.ids);
    // Keys and values grow with the reply; what the reply is sure to need is its prompt and what was asked
    // for.
    DGEMMA_CHECK(check_memory(
        model.fit,
        std::min(model.fit.longest, static_cast<std::int64_t>(request.prompt.size()) +
                                        std::max<std::int64_t>(request.max_tokens, model.fit.least))));
    reply::answer_guards(request, model.tokenizer, prompt.ends_in_thought);
    const InterruptGuard interrupt;
    request.cancel = &interrupt.flag();

    reply::ReplyText reply(model.tokenizer, reply::parser_options(request, prompt.ends_in_thought),
                           arguments.list(Flag::stop));
    const bool json = arguments.on(Flag::json);
    TextView text(
        console, [] { return terminal_size(STDERR_FILENO); }, frame_time);
    const int canvas_length =
        request.canvas_length > 0 ? request.canvas_length : model.generator->config().canvas_length;
    JsonEvents events(console.out, model.tokenizer,
                      {.model = model.checkpoint->path().string(),
                       .prompt_tokens = request.prompt.size(),
                       .context = model.generator->context_limit(),
                       .seed = request.diffusion.seed,
                       .canvas_length = canvas_length});
    reply::ReplyView& view = json ? static_cast<reply::ReplyView&>(events) : text;
    reply::ReplySink sink(reply, view);
    Result<engine::EndEvent> end = model.generator->generate(request, sink);
    text.close();
    if (!end) {
        if (json) events.error(end.error().message);
        return std::move(end).error();
    }
    if (!json) note(console, end.value(), reply.whole());
    if (arguments.on(Flag::stats)) show_stats(console, end->stats, load_ms);
    return end->reason == engine::FinishReason::cancelled ? interrupt.exit_code() : 0;
}

}  // namespace dgemma::cli
