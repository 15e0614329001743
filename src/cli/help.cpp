#include "cli/help.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace dgemma::cli {

namespace {

// "-m, --model MODEL"
std::string spelling(const FlagInfo& flag) {
    std::string out = flag.short_name != 0 ? fmt::format("-{}, ", flag.short_name) : "    ";
    out += fmt::format("--{}", flag.name);
    if (!flag.value_name.empty()) out += fmt::format(" {}", flag.value_name);
    return out;
}

// The help text with what the value may be and what holds without it.
std::string explanation(const FlagInfo& flag) {
    std::string out(flag.help);
    // --no-guard takes the names that --guard lists.
    if (flag.kind == FlagKind::whole || flag.kind == FlagKind::real || flag.kind == FlagKind::choice ||
        flag.flag == Flag::guard) {
        out += fmt::format("; {}", range_text(flag));
    }
    if (!flag.fallback.empty()) out += fmt::format(" (default: {})", flag.fallback);
    return out;
}

// `text` broken at spaces so that it fits beside a left column.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
    std::string out;
    std::size_t column = indent;
    while (!text.empty()) {
        const std::size_t space = text.find(' ');
        const std::string_view word = text.substr(0, space);
        if (column > indent && column + 1 + word.size() > width) {
            out += "\n" + std::string(indent, ' ');
            column = indent;
        }
        if (column > indent) {
            out += ' ';
            ++column;
        }
        out += word;
        column += word.size();
        text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
    }
    return out;
}

std::vector<const FlagInfo*> flags_of(Verb verb) {
    std::vector<const FlagInfo*> out;
    for (const FlagInfo& flag : flags()) {
        if ((flag.verbs & bit_of(verb)) != 0) out.push_back(&flag);
    }
    return out;
}

constexpr std::size_t left = 30, width = 100;

std::string flag_lines(const FlagInfo& flag) {
    std::string head = "  " + spelling(flag);
    // A long spelling pushes its explanation to the next line.
    head += head.size() + 2 > left ? "\n" + std::string(left, ' ') : std::string(left - head.size(), ' ');
    return head + wrapped(explanation(flag), left, width) + "\n";
}

std::string general_flags() {
    std::string out = "General\n";
    for (const FlagInfo& flag : flags()) {
        if (flag.verbs == 0) out += flag_lines(flag);
    }
    return out;
}

std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        if (c == '<') {
            out += "&lt;";
            continue;
        }
        out += c;
    }
    return out;
}

}  // namespace

std::string general_help() {
    std::string out =
        "dgemma runs DiffusionGemma, the language model that writes by denoising.\n\n"
        "Usage: dgemma COMMAND [FLAGS]\n\nCommands\n";
    for (const VerbInfo& verb : verbs()) out += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
    out += "\n" + general_flags();
    out += fmt::format("\nExample: {}\n", verbs().front().example);
    out +=
        "More: dgemma COMMAND --help. Exit codes: 0 done, 1 it did not work, 2 it was asked for wrongly.\n";
    return out;
}

std::string verb_help(Verb verb) {
    const VerbInfo& info = info_of(verb);
    std::string out = fmt::format("dgemma {}: {}\n\nUsage: dgemma {} [FLAGS]{}{}\n", info.name, info.summary,
                                  info.name, info.arguments.empty() ? "" : " ", info.arguments);
    std::string_view group;
    for (const FlagInfo* flag : flags_of(verb)) {
        if (flag->group != group) out += fmt::format("\n{}\n", flag->group);
        group = flag->group;
        out += flag_lines(*flag);
    }
    out += "\n" + general_flags();
    out += fmt::format("\nExample: {}\n", info.example);
    out +=
        "Most flags can be set in the environment too: --max-tokens as DGEMMA_MAX_TOKENS (docs/FLAGS.md).\n";
    return out;
}

std::string markdown_help() {
    std::string out =
        "# Commands and flags\n\n"
        "Written by `dgemma --help-markdown` from the table in `src/cli/flags.cpp`; a test holds this file "
        "against it.\n\n"
        "A value goes after its flag (`--steps 20`, `--steps=20`, `-n 50`). A toggle may be given a value "
        "too\n"
        "(`--think=no`). What is given on the command line goes before the environment. A variable that is "
        "set to\n"
        "something its flag does not take is an error, in every command. Exit codes: 0 done, 1 it did not "
        "work,\n"
        "2 it was asked for wrongly, 130 interrupted.\n";
    for (const VerbInfo& verb : verbs()) {
        out +=
            fmt::format("\n## dgemma {}\n\n{}{}.\n\n    {}\n\n", verb.name,
                        static_cast<char>(verb.summary[0] - 'a' + 'A'), verb.summary.substr(1), verb.example);
        out += "| flag | what it does | environment |\n|---|---|---|\n";
        for (const FlagInfo* flag : flags_of(verb.verb)) {
            std::string names = flag->short_name != 0 ? fmt::format("`-{}`, ", flag->short_name) : "";
            names +=
                fmt::format("`--{}{}{}`", flag->name, flag->value_name.empty() ? "" : " ", flag->value_name);
            out += fmt::format("| {} | {} | {} |\n", names, cell(explanation(*flag)),
                               flag->environment ? fmt::format("`{}`", environment_name(*flag)) : "");
        }
    }
    out += "\n## Everywhere\n\n| flag | what it does |\n|---|---|\n";
    for (const FlagInfo& flag : flags()) {
        if (flag.verbs != 0) continue;
        const std::string names = flag.short_name != 0 ? fmt::format("`-{}`, ", flag.short_name) : "";
        out += fmt::format("| {}`--{}` | {} |\n", names, flag.name, cell(flag.help));
    }
    return out;
}

}  // namespace dgemma::cli
