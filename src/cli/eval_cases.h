// Prompts with known answers, and the counting of right ones.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace dgemma::cli {

// One line of a cases file.
struct EvalCase {
    int row = 0;  // its number in the file, from 0
    std::string kind;
    std::string prompt;               // raw template text
    std::string expected;             // with special tokens
    std::optional<std::string> stop;  // the token that ends the answer; none: the token limit does
    bool exact = true;                // false: many answers are right, and `expected` is one of them
};

// Reads lines of {"kind", "prompt", "expected", "stop", "exact"}; blank lines are passed over, further keys
// do not matter, `exact` may be absent (true). `where` names the file in messages. Errors: invalid, with the
// line.
Result<std::vector<EvalCase>> read_cases(std::istream& in, const std::string& where);

struct EvalAnswer {
    std::string text;                 // special tokens kept, up to the stop id
    std::optional<std::string> stop;  // the stop token
    int steps = 0;                    // denoising passes, re-rolled ones included
    int blocks = 0;
    int tokens = 0;
};

// Whether an exact case is answered right; nothing for a free one.
std::optional<bool> judge(const EvalCase& asked, const EvalAnswer& answer);

// The line of --rows for a case: {"row","kind","answer","stop","correct","steps","blocks"}.
std::string row_json(const EvalCase& asked, const EvalAnswer& answer);

// Sums over the cases of a run.
class EvalTally {
  public:
    void add(const EvalCase& asked, const EvalAnswer& answer);

    [[nodiscard]] int run() const { return cases_ + free_.cases; }
    [[nodiscard]] int cases() const { return cases_; }
    [[nodiscard]] int correct() const { return correct_; }

    // {"cases","correct","accuracy","by_kind","free","tokens","blocks","steps","seconds"}. cases and correct
    // count exact rows only, also per kind; steps and blocks count every row that was run, so those of a free
    // kind are under its name too. accuracy is null without exact rows.
    [[nodiscard]] std::string json(double seconds) const;

    // The same as a table for people.
    [[nodiscard]] std::string table(double seconds) const;

  private:
    struct Sum {
        int cases = 0, correct = 0, rows = 0;
        std::int64_t steps = 0, blocks = 0;
    };
    int cases_ = 0, correct_ = 0;
    std::int64_t tokens_ = 0, steps_ = 0, blocks_ = 0;
    Sum free_;
    std::map<std::string, Sum> by_kind_;
};

}  // namespace dgemma::cli
