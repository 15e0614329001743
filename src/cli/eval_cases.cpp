#include "cli/eval_cases.h"

#include <cerrno>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "cli/read_input.h"
#include "cli/words.h"
#include "text/value.h"

namespace dgemma::cli {

namespace {

using Json = nlohmann::ordered_json;
using text::Value;

// What is written is UTF-8 already; `replace` keeps dump() from throwing if it ever is not.
std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Error bad(const std::string& where, int line, const std::string& what) {
    return {ErrorKind::invalid, fmt::format("{} line {} {}.", where, line, what)};
}

Result<EvalCase> read_case(const std::string& text, const std::string& where, int line) {
    DGEMMA_TRY(const Value value, text::parse_json(text, fmt::format("{} line {}", where, line)));
    if (!value.is(Value::Type::object)) return bad(where, line, "is no JSON object");
    EvalCase out;
    const auto take = [&](std::string_view key, std::string& into) -> Status {
        const Value* found = value.find(key);
        if (found == nullptr || !found->is(Value::Type::string)) {
            return bad(where, line, fmt::format("has no text under \"{}\"", key));
        }
        into = found->as_string();
        return {};
    };
    DGEMMA_CHECK(take("kind", out.kind));
    DGEMMA_CHECK(take("prompt", out.prompt));
    if (out.prompt.empty()) return bad(where, line, "has an empty \"prompt\", which asks nothing");
    DGEMMA_CHECK(take("expected", out.expected));
    if (const Value* stop = value.find("stop"); stop != nullptr && !stop->is(Value::Type::null)) {
        DGEMMA_CHECK(take("stop", out.stop.emplace()));
    }
    if (const Value* exact = value.find("exact")) {
        if (!exact->is(Value::Type::boolean))
            return bad(where, line, "has neither true nor false under \"exact\"");
        out.exact = exact->as_boolean();
    }
    return out;
}

double ratio(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

Result<std::vector<EvalCase>> read_cases(std::istream& in, const std::string& where) {
    std::vector<EvalCase> out;
    std::string text;
    int row = 0;
    errno = 0;
    for (int line = 1; std::getline(in, text); ++line) {
        if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
        DGEMMA_TRY(EvalCase one, read_case(text, where, line));
        one.row = row++;
        out.push_back(std::move(one));
    }
    if (in.bad()) return unreadable(where, errno);
    return out;
}

std::optional<bool> judge(const EvalCase& asked, const EvalAnswer& answer) {
    if (!asked.exact) return std::nullopt;
    return answer.text == asked.expected && answer.stop == asked.stop;
}

std::string row_json(const EvalCase& asked, const EvalAnswer& answer) {
    const auto correct = judge(asked, answer);
    Json line;
    line["row"] = asked.row;
    line["kind"] = asked.kind;
    line["answer"] = answer.text;
    line["stop"] = answer.stop ? Json(*answer.stop) : Json();
    line["correct"] = correct ? Json(*correct) : Json();
    line["steps"] = answer.steps;
    line["blocks"] = answer.blocks;
    return line_of(line);
}

void EvalTally::add(const EvalCase& asked, const EvalAnswer& answer) {
    Sum& kind = by_kind_[asked.kind];
    tokens_ += answer.tokens;
    steps_ += answer.steps;
    blocks_ += answer.blocks;
    kind.rows += 1;
    kind.steps += answer.steps;
    kind.blocks += answer.blocks;
    if (const auto correct = judge(asked, answer)) {
        const int right = *correct ? 1 : 0;
        cases_ += 1;
        correct_ += right;
        kind.cases += 1;
        kind.correct += right;
    } else {
        free_.cases += 1;
        free_.steps += answer.steps;
        free_.blocks += answer.blocks;
    }
}

std::string EvalTally::json(double seconds) const {
    Json kinds = Json::object();
    for (const auto& [kind, sum] : by_kind_) {
        kinds[kind] = {
            {"correct", sum.correct}, {"cases", sum.cases}, {"steps", sum.steps}, {"blocks", sum.blocks}};
    }
    Json out;
    out["cases"] = cases_;
    out["correct"] = correct_;
    out["accuracy"] = cases_ > 0 ? Json(ratio(correct_, cases_)) : Json();
    out["by_kind"] = std::move(kinds);
    out["free"] = {{"rows", free_.cases}, {"steps", free_.steps}, {"blocks", free_.blocks}};
    out["tokens"] = tokens_;
    out["blocks"] = blocks_;
    out["steps"] = steps_;
    out["seconds"] = seconds;
    return line_of(out);
}

std::string EvalTally::table(double seconds) const {
    std::string out = fmt::format("{:<14}{:>9}{:>9}{:>14}\n", "kind", "right", "rows", "steps/block");
    for (const auto& [kind, sum] : by_kind_) {
        const std::string right = sum.cases > 0 ? fmt::format("{}/{}", sum.correct, sum.cases) : "free";
        out += fmt::format("{:<14}{:>9}{:>9}{:>14.1f}\n", printable(kind), right, sum.rows,
                           ratio(sum.steps, sum.blocks));
    }
    out += fmt::format("{} of {} right", correct_, cases_);
    if (cases_ > 0) out += fmt::format(" ({:.3f})", ratio(correct_, cases_));
    const auto count = [](std::int64_t n, std::string_view noun) {
        return counted(static_cast<std::uint64_t>(n), noun);
    };
    out += fmt::format("; {}, {}, {}, {} in {:.1f} s\n", count(run(), "row"), count(tokens_, "token"),
                       count(blocks_, "block"), count(steps_, "step"), seconds);
    return out;
}

}  // namespace dgemma::cli
