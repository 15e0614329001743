#include "cli/eval_cases.h"

#include <sstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace dgemma::cli {
namespace {

Result<std::vector<EvalCase>> read(const std::string& text) {
    std::istringstream in(text);
    return read_cases(in, "cases.jsonl");
}

EvalCase exact(const std::string& kind, const std::string& expected,
               std::optional<std::string> stop = "<turn|>") {
    EvalCase out;
    out.kind = kind;
    out.expected = expected;
    out.stop = std::move(stop);
    return out;
}

TEST(EvalCases, ReadsRowsAndNumbersThemAsTheyStand) {
    const auto cases = read(
        "{\"kind\":\"add\",\"prompt\":\"p\",\"question\":\"q\",\"expected\":\"4\",\"stop\":\"<turn|>\","
        "\"exact\":true}\n"
        "\n"
        "{\"kind\":\"list\",\"prompt\":\"p\\n2\",\"expected\":\"- a\",\"stop\":null,\"exact\":false}\r\n"
        "{\"kind\":\"add\",\"prompt\":\"p\",\"expected\":\"\"}");
    ASSERT_TRUE(cases) << cases.error().message;
    ASSERT_EQ(cases->size(), 3u);
    EXPECT_EQ((*cases)[0].stop, "<turn|>");
    EXPECT_TRUE((*cases)[0].exact);
    EXPECT_EQ((*cases)[1].row, 1);
    EXPECT_EQ((*cases)[1].prompt, "p\n2");
    EXPECT_FALSE((*cases)[1].exact);
    EXPECT_EQ((*cases)[1].stop, std::nullopt);
    EXPECT_TRUE((*cases)[2].exact);
}

TEST(EvalCases, NamesTheLineThatIsWrong) {
    const std::string good = "{\"kind\":\"a\",\"prompt\":\"p\",\"expected\":\"\"}\n";
    for (const std::string bad :
         {"[1]", "{", "{\"kind\":\"a\",\"prompt\":\"p\"}", "{\"kind\":1,\"prompt\":\"\",\"expected\":\"\"}",
          "{\"kind\":\"a\",\"prompt\":\"p\",\"expected\":\"\",\"exact\":1}",
          "{\"kind\":\"a\",\"prompt\":\"p\",\"expected\":\"\",\"stop\":7}",
          "{\"kind\":\"a\",\"prompt\":\"\",\"expected\":\"\"}"}) {
        const auto cases = read(good + bad);
        ASSERT_FALSE(cases) << bad;
        EXPECT_EQ(cases.error().kind, ErrorKind::invalid);
        EXPECT_NE(cases.error().message.find("cases.jsonl line 2"), std::string::npos)
            << cases.error().message;
    }
}

TEST(EvalScoring, AnAnswerIsRightWhenTextAndStopTokenAre) {
    const EvalCase asked = exact("add", "42");
    EXPECT_EQ(judge(asked, {.text = "42", .stop = "<turn|>"}), true);
    EXPECT_EQ(judge(asked, {.text = "42 ", .stop = "<turn|>"}), false);
    EXPECT_EQ(judge(asked, {.text = "42", .stop = "<eos>"}), false);
    EXPECT_EQ(judge(asked, {.text = "42", .stop = std::nullopt}), false);
    EXPECT_EQ(judge(exact("long", "x", std::nullopt), {.text = "x"}), true);
    EvalCase free = asked;
    free.exact = false;
    EXPECT_EQ(judge(free, {.text = "42", .stop = "<turn|>"}), std::nullopt);
}

TEST(EvalScoring, WritesALinePerRow) {
    EvalCase asked = exact("add", "42");
    asked.row = 7;
    EXPECT_EQ(
        row_json(asked, {.text = "4\n\"2", .stop = "<turn|>", .steps = 3, .blocks = 1}),
        R"({"row":7,"kind":"add","answer":"4\n\"2","stop":"<turn|>","correct":false,"steps":3,"blocks":1})");
    asked.exact = false;
    EXPECT_EQ(row_json(asked, {.text = "", .stop = std::nullopt, .steps = 48, .blocks = 2}),
              R"({"row":7,"kind":"add","answer":"","stop":null,"correct":null,"steps":48,"blocks":2})");
}

TEST(EvalScoring, CountsExactAndFreeRowsApart) {
    EvalTally tally;
    tally.add(exact("add", "1"), {.text = "1", .stop = "<turn|>", .steps = 2, .blocks = 1, .tokens = 1});
    tally.add(exact("add", "2"), {.text = "3", .stop = "<turn|>", .steps = 4, .blocks = 1, .tokens = 1});
    tally.add(exact("seq", "5"), {.text = "5", .stop = "<turn|>", .steps = 2, .blocks = 2, .tokens = 300});
    EvalCase free = exact("list", "- a");
    free.exact = false;
    tally.add(free, {.text = "- b", .stop = "<turn|>", .steps = 15, .blocks = 1, .tokens = 4});
    const auto json = nlohmann::json::parse(tally.json(1.5));
    EXPECT_EQ(json, nlohmann::json::parse(R"({
        "cases": 3, "correct": 2, "accuracy": 0.6666666666666666,
        "by_kind": {"add": {"correct": 1, "cases": 2, "steps": 6, "blocks": 2},
                    "seq": {"correct": 1, "cases": 1, "steps": 2, "blocks": 2},
                    "list": {"correct": 0, "cases": 0, "steps": 15, "blocks": 1}},
        "free": {"rows": 1, "steps": 15, "blocks": 1},
        "tokens": 306, "blocks": 5, "steps": 23, "seconds": 1.5})"));
    EXPECT_NE(tally.table(1.5).find("2 of 3 right"), std::string::npos);
    EXPECT_EQ(tally.json(0).find('\n'), std::string::npos);
}

TEST(EvalScoring, TheTableHoldsNothingThatSteersATerminal) {
    EvalTally tally;
    tally.add(exact("a\x1b[2J\nb", "1"),
              {.text = "1", .stop = "<turn|>", .steps = 1, .blocks = 1, .tokens = 1});
    const std::string table = tally.table(1);
    EXPECT_EQ(table.find('\x1b'), std::string::npos);
    EXPECT_NE(table.find("a\\x1B[2J\\x0Ab"), std::string::npos) << table;
    EXPECT_NE(table.find("1 row, 1 token, 1 block, 1 step in"), std::string::npos) << table;
}

TEST(EvalScoring, WithoutExactRowsThereIsNoAccuracy) {
    EvalTally tally;
    EvalCase free = exact("list", "- a");
    free.exact = false;
    tally.add(free, {.text = "- b"});
    EXPECT_TRUE(nlohmann::json::parse(tally.json(0))["accuracy"].is_null());
}

}  // namespace
}  // namespace dgemma::cli
