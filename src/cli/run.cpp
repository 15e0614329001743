#include <new>
#include <string>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/help.h"
#include "cli/verbs.h"

namespace dgemma::cli {

namespace {

int exit_code_of(ErrorKind kind) { return kind == ErrorKind::usage ? 2 : 1; }

int fail(Console& console, const Error& error) {
    std::string message = error.message;
    // One line, whatever a file or an operating system put into it, and one full stop.
    for (char& c : message) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
    }
    if (!message.empty() && std::string_view(".?!").find(message.back()) == std::string_view::npos)
        message += '.';
    console.err << "dgemma: " << message << std::endl;
    return exit_code_of(error.kind);
}

Result<int> run_verb(Verb verb, const Arguments& arguments, Console& console) {
    if (verb != Verb::ask && verb != Verb::replay && !arguments.words().empty()) {
        return Error{ErrorKind::usage,
                     fmt::format("{} takes flags only, and {} is none; see dgemma {} --help.",
                                 info_of(verb).name, quote(arguments.words().front()), info_of(verb).name)};
    }
    switch (verb) {
        case Verb::ask:
            return run_ask(arguments, console);
        case Verb::eval:
            return run_eval(arguments, console);
        case Verb::info:
            return run_info(arguments, console);
        case Verb::doctor:
            return run_doctor(arguments, console);
        case Verb::tokenize:
            return run_tokenize(arguments, console);
        case Verb::template_text:
            return run_template(arguments, console);
        case Verb::parse:
            return run_parse(arguments, console);
        case Verb::verify:
            return run_verify(arguments, console);
        case Verb::bench:
            return run_bench(arguments, console);
        case Verb::quantize:
            return run_quantize(arguments, console);
        case Verb::synth:
            return run_synth(arguments, console);
        case Verb::replay:
            return run_replay(arguments, console);
        case Verb::serve:
            return run_serve(arguments, console);
    }
    return 1;
}

Result<int> run_arguments(const Arguments& arguments, Console& console) {
    if (arguments.on(Flag::help_markdown)) {
        console.out << markdown_help();
        return 0;
    }
    if (arguments.on(Flag::version)) {
        console.out << "dgemma " << DGEMMA_VERSION << "\n";
        return 0;
    }
    if (arguments.on(Flag::help)) {
        console.out << (arguments.verb() ? verb_help(*arguments.verb()) : general_help());
        return 0;
    }
    if (!arguments.verb()) {
        console.err << general_help();
        return 2;
    }
    for (const auto& [name, meant] : arguments.suspects()) {
        console.err << fmt::format("dgemma: note: {} is set and means nothing; did you mean {}?\n", name,
                                   meant);
    }
    return run_verb(*arguments.verb(), arguments, console);
}

}  // namespace

int run(std::span<const std::string> args, std::span<const std::string> environment, Console& console) {
    try {
        const Result<Arguments> arguments = Arguments::parse(args, environment);
        if (!arguments) return fail(console, arguments.error());
        const Result<int> code = run_arguments(arguments.value(), console);
        if (!code) return fail(console, code.error());
        console.out.flush();
        if (!console.out) {
            return fail(console, {ErrorKind::io,
                                  "What was to be written to stdout could not all be written; is the "
                                  "disk full?"});
        }
        return code.value();
    } catch (const std::bad_alloc&) {
        return fail(console,
                    {ErrorKind::io, "There is not enough memory; try a smaller --ctx or a smaller model."});
    }
}

}  // namespace dgemma::cli
