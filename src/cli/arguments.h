// A command line and its environment, checked against the table of flags.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"

namespace dgemma::cli {

// What a command line asks for. Every value has been checked against its flag's kind and range.
class Arguments {
  public:
    // args: what follows the program's name. environment: "NAME=value" entries, of which those named
    // DGEMMA_... are read: a flag's variable holds where the command line does not give the flag, and a value
    // that is not one is an error in every verb. Of a flag given twice the last counts, except for lists.
    //
    // Errors: usage, one sentence that names the flag or variable, the value and what it takes; an unknown
    // flag or verb comes with the nearest known one.
    static Result<Arguments> parse(std::span<const std::string> args,
                                   std::span<const std::string> environment);

    [[nodiscard]] std::optional<Verb> verb() const { return verb_; }  // nothing: only --help and the like
    [[nodiscard]] const std::vector<std::string>& words() const { return words_; }  // what is no flag
    // Variables named DGEMMA_... that no flag has but that look like one misspelt, with the name meant.
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& suspects() const {
        return suspects_;
    }

    [[nodiscard]] bool given(Flag flag) const { return !values(flag).empty(); }
    [[nodiscard]] bool on(Flag toggle) const;
    [[nodiscard]] std::optional<std::string> text(Flag flag) const;  // as it was given
    [[nodiscard]] std::optional<std::uint64_t> whole(
        Flag flag) const;                                       // nothing for a word in place of a number
    [[nodiscard]] int whole_or(Flag flag, int fallback) const;  // for flags whose range is that of an int
    [[nodiscard]] std::optional<double> real(Flag flag) const;
    [[nodiscard]] const std::vector<std::string>& list(Flag flag) const { return values(flag); }

    // "--steps", or "DGEMMA_STEPS" where that is where the value came from.
    [[nodiscard]] std::string source(Flag flag) const;

  private:
    class Reader;
    [[nodiscard]] const std::vector<std::string>& values(Flag flag) const {
        return values_[static_cast<std::size_t>(flag)];
    }

    std::optional<Verb> verb_;
    std::vector<std::string> words_;
    std::array<std::vector<std::string>, flag_count> values_;
    std::array<bool, flag_count> from_environment_{};
    std::vector<std::pair<std::string, std::string>> suspects_;
};

}  // namespace dgemma::cli
