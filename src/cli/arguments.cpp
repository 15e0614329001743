#include "cli/arguments.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/guards.h"
#include "cli/nearest.h"
#include "cli/words.h"

namespace dgemma::cli {

namespace {

Error usage(std::string message) { return {ErrorKind::usage, std::move(message)}; }

// Whether `value` is what the flag takes. `where` is the flag or variable, as the message names it.
Status check(const FlagInfo& flag, const std::string& where, const std::string& value) {
    const auto refuse = [&]() -> Status {
        return usage(fmt::format("{} takes {}, not {}.", where, range_text(flag),
                                 value.empty() ? "an empty value" : quote(value)));
    };
    switch (flag.kind) {
        case FlagKind::toggle:
            return read_toggle(value) ? Status() : refuse();
        case FlagKind::whole: {
            if (std::find(flag.choices.begin(), flag.choices.end(), value) != flag.choices.end()) return {};
            const auto number = read_whole(value);
            // The largest `most` is 2^64 - 1, which as a double is 2^64: every u64 passes.
            const bool fits = number && static_cast<double>(*number) >= flag.least &&
                              static_cast<double>(*number) <= flag.most;
            return fits ? Status() : refuse();
        }
        case FlagKind::real: {
            const auto number = read_real(value);
            const bool fits =
                number && *number <= flag.most && (flag.open ? *number > flag.least : *number >= flag.least);
            return fits ? Status() : refuse();
        }
        case FlagKind::choice: {
            if (std::find(flag.choices.begin(), flag.choices.end(), value) != flag.choices.end()) return {};
            if (const auto near = nearest(value, flag.choices); near && !value.empty()) {
                return usage(fmt::format("{} takes {}, not {}; did you mean {}?", where, range_text(flag),
                                         quote(value), *near));
            }
            return refuse();
        }
        case FlagKind::text:
        case FlagKind::path:
        case FlagKind::paths:
        case FlagKind::list:
            return value.empty() ? refuse() : Status();
        case FlagKind::guard: {
            if (value.empty()) return refuse();
            diffusion::Guards scratch;
            const Status status =
                flag.flag == Flag::guard ? turn_on(scratch, value) : turn_off(scratch, value);
            return status ? Status() : usage(fmt::format("{} {}", where, status.error().message));
        }
    }
    return {};
}

bool is_list(const FlagInfo& flag) {
    return flag.kind == FlagKind::list || flag.kind == FlagKind::paths || flag.kind == FlagKind::guard;
}

// A flag of no verb in particular (--help) belongs to all of them.
bool belongs(const FlagInfo& flag, std::optional<Verb> verb) {
    return flag.verbs == 0 || (verb && (flag.verbs & bit_of(*verb)) != 0);
}

std::string verbs_of(const FlagInfo& flag) {
    std::vector<std::string_view> names;
    for (const VerbInfo& verb : verbs()) {
        if ((flag.verbs & bit_of(verb.verb)) != 0) names.push_back(verb.name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

// Walks the words of one command line.
class Arguments::Reader {
  public:
    Reader(Arguments& out, std::span<const std::string> args) : out_(out), args_(args) {}

    Status read() {
        bool flags_over = false;
        while (at_ < args_.size()) {
            const std::string& word = args_[at_++];
            if (flags_over || word.size() < 2 || word[0] != '-') {
                DGEMMA_CHECK(take_word(word));
            } else if (word == "--") {
                flags_over = true;
            } else if (word[1] == '-') {
                DGEMMA_CHECK(take_long(word));
            } else {
                DGEMMA_CHECK(take_short(word));
            }
        }
        return {};
    }

  private:
    Status take_word(const std::string& word) {
        if (out_.verb_) {
            out_.words_.push_back(word);
            return {};
        }
        if (word == "help") {  // dgemma help, dgemma help ask
            out_.values_[static_cast<std::size_t>(Flag::help)] = {"yes"};
            return {};
        }
        std::vector<std::string_view> names;
        for (const VerbInfo& verb : verbs()) {
            if (verb.name == word) {
                out_.verb_ = verb.verb;
                return {};
            }
            names.push_back(verb.name);
        }
        const auto near = nearest(word, names);
        return usage(near ? fmt::format("There is no command {}; did you mean {}?", quote(word), *near)
                          : fmt::format("There is no command {}; the commands are {}.", quote(word),
                                        fmt::join(names, ", ")));
    }

    Status take_long(const std::string& word) {
        const std::size_t equals = word.find('=');
        const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
        const FlagInfo* flag = nullptr;
        for (const FlagInfo& candidate : flags()) {
            if (candidate.name == name) flag = &candidate;
        }
        if (flag == nullptr) return unknown("--" + name);
        DGEMMA_CHECK(allowed(*flag, "--" + name));
        std::optional<std::string> value;
        if (equals != std::string::npos) value = word.substr(equals + 1);
        return take_value(*flag, "--" + name, std::move(value));
    }

    // -m MODEL, -mMODEL, and toggles run together (-vj2).
    Status take_short(const std::string& word) {
        for (std::size_t i = 1; i < word.size(); ++i) {
            const FlagInfo* flag = nullptr;
            for (const FlagInfo& candidate : flags()) {
                if (candidate.short_name == word[i]) flag = &candidate;
            }
            if (flag == nullptr) {
                return usage(
                    fmt::format("There is no flag {}; a prompt that begins with a dash goes after --, and {} "
                                "lists the flags.",
                                quote(word), help_command()));
            }
            const std::string where{'-', word[i]};
            DGEMMA_CHECK(allowed(*flag, where));
            if (flag->kind == FlagKind::toggle) {
                DGEMMA_CHECK(take_value(*flag, where, std::nullopt));
                continue;
            }
            std::optional<std::string> value;
            if (i + 1 < word.size()) value = word.substr(i + 1);
            return take_value(*flag, where, std::move(value));
        }
        return {};
    }

    Status take_value(const FlagInfo& flag, const std::string& where, std::optional<std::string> value) {
        if (!value && flag.kind == FlagKind::toggle) value = "yes";
        if (!value) {
            if (at_ == args_.size()) {
                return usage(fmt::format("{} takes {}, and nothing follows it.", where, range_text(flag)));
            }
            value = args_[at_++];
        }
        DGEMMA_CHECK(check(flag, where, *value));
        auto& values = out_.values_[static_cast<std::size_t>(flag.flag)];
        if (!is_list(flag)) values.clear();
        values.push_back(*std::move(value));
        return {};
    }

    [[nodiscard]] Status allowed(const FlagInfo& flag, const std::string& where) const {
        if (belongs(flag, out_.verb_)) return {};
        if (!out_.verb_)
            return usage(fmt::format("{} goes after a command: dgemma ask {} ...", where, where));
        return usage(fmt::format("{} is no flag of {}; it belongs to {}.", where, info_of(*out_.verb_).name,
                                 verbs_of(flag)));
    }

    [[nodiscard]] Status unknown(const std::string& word) const {
        std::vector<std::string> names;
        for (const FlagInfo& flag : flags()) {
            if (belongs(flag, out_.verb_)) names.push_back("--" + std::string(flag.name));
        }
        const std::vector<std::string_view> views(names.begin(), names.end());
        const std::string owner = out_.verb_ ? fmt::format(" of {}", info_of(*out_.verb_).name) : "";
        const auto near = nearest(word, views);
        return usage(near ? fmt::format("There is no flag {}{}; did you mean {}?", quote(word), owner, *near)
                          : fmt::format("There is no flag {}{}; {} lists the flags.", quote(word), owner,
                                        help_command()));
    }

    [[nodiscard]] std::string help_command() const {
        return out_.verb_ ? fmt::format("dgemma {} --help", info_of(*out_.verb_).name) : "dgemma --help";
    }

    Arguments& out_;
    std::span<const std::string> args_;
    std::size_t at_ = 0;
};

Result<Arguments> Arguments::parse(std::span<const std::string> args,
                                   std::span<const std::string> environment) {
    Arguments out;
    DGEMMA_CHECK(Reader(out, args).read());
    if (out.on(Flag::help) || out.on(Flag::version) || out.on(Flag::help_markdown)) return out;

    constexpr std::string_view prefix = "DGEMMA_";
    std::vector<std::string> names;
    for (const FlagInfo& flag : flags()) {
        if (flag.environment) names.push_back(environment_name(flag));
    }
    const std::vector<std::string_view> views(names.begin(), names.end());
    for (const std::string& entry : environment) {
        const std::size_t equals = entry.find('=');
        if (equals == std::string::npos || !entry.starts_with(prefix)) continue;
        const std::string name = entry.substr(0, equals);
        const FlagInfo* flag = nullptr;
        for (const FlagInfo& candidate : flags()) {
            if (candidate.environment && environment_name(candidate) == name) flag = &candidate;
        }
        if (flag == nullptr) {
            if (const auto near = nearest(name, views); near && edit_distance(name, *near) <= 2) {
                out.suspects_.emplace_back(name, *near);
            }
            continue;
        }
        std::string value = entry.substr(equals + 1);
        DGEMMA_CHECK(check(*flag, name, value));
        const auto index = static_cast<std::size_t>(flag->flag);
        if (!belongs(*flag, out.verb_) || !out.values_[index].empty()) continue;
        out.values_[index].push_back(std::move(value));
        out.from_environment_[index] = true;
    }
    return out;
}

bool Arguments::on(Flag toggle) const {
    const auto& given = values(toggle);
    return !given.empty() && read_toggle(given.back()).value_or(false);
}

std::optional<std::string> Arguments::text(Flag flag) const {
    const auto& given = values(flag);
    return given.empty() ? std::nullopt : std::optional(given.back());
}

std::optional<std::uint64_t> Arguments::whole(Flag flag) const {
    const auto& given = values(flag);
    return given.empty() ? std::nullopt : read_whole(given.back());
}

int Arguments::whole_or(Flag flag, int fallback) const {
    const auto number = whole(flag);
    return number ? static_cast<int>(*number) : fallback;
}

std::optional<double> Arguments::real(Flag flag) const {
    const auto& given = values(flag);
    return given.empty() ? std::nullopt : read_real(given.back());
}

std::string Arguments::source(Flag flag) const {
    const FlagInfo& info = info_of(flag);
    return from_environment_[static_cast<std::size_t>(flag)] ? environment_name(info)
                                                             : fmt::format("--{}", info.name);
}

}  // namespace dgemma::cli
