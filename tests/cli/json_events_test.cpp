#include "cli/json_events.h"

#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/scripted_reply.h"
#include "support/shared.h"

namespace dgemma::cli {
namespace {

std::vector<nlohmann::json> events_of(const std::vector<ScriptedReply::Block>& blocks,
                                      const std::vector<std::string>& stops = {}) {
    std::ostringstream out;
    JsonEvents events(out, demo_tokenizer(),
                      {.model = "m",
                       .prompt_tokens = 5,
                       .context = 4096,
                       .seed = 18446744073709551615u,
                       .canvas_length = 128});
    reply::ReplyText reply(demo_tokenizer(), {}, stops);
    reply::ReplySink sink(reply, events);
    ScriptedReply::tell(sink, blocks);
    std::vector<nlohmann::json> lines;
    std::istringstream in(out.str());
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

std::vector<std::string> names_of(const std::vector<nlohmann::json>& lines) {
    std::vector<std::string> out;
    for (const auto& line : lines) out.push_back(line.at("event"));
    return out;
}

TEST(JsonEvents, TellAReplyInOrder) {
    const auto lines = events_of({{{"Par", "Paris is"}, "Paris is"}, {{" big."}, " big.<turn|>"}});
    EXPECT_EQ(names_of(lines),
              (std::vector<std::string>{"start", "prefill", "prefill", "step", "step", "block", "content",
                                        "step", "block", "content", "end"}));
    EXPECT_EQ(lines[0],
              nlohmann::json::parse(R"({"event":"start","model":"m","prompt_tokens":5,"context":4096,
                                                  "seed":18446744073709551615,"canvas_length":128})"));
    EXPECT_EQ(lines[3].at("draft"), "Par");
    EXPECT_EQ(lines[3].at("temperature"), 0.8);
    EXPECT_EQ(lines[5].at("guards"), nlohmann::json::parse(R"(["last_step"])"));
    EXPECT_TRUE(lines[5].at("stop").is_null());
    EXPECT_EQ(lines[7].at("draft"), " big.");
    EXPECT_EQ(lines[8].at("stop"), "<turn|>");
    const auto& end = lines.back();
    EXPECT_EQ(end.at("reason"), "stop");
    EXPECT_EQ(end.at("content"), "Paris is big.");
    EXPECT_TRUE(end.at("reasoning_content").is_null());
    EXPECT_EQ(end.at("tool_calls"), nlohmann::json::array());
    EXPECT_EQ(end.at("stats").at("steps"), 3);
    EXPECT_EQ(end.at("stats").at("blocks").size(), 2u);
}

TEST(JsonEvents, ThoughtsAndCallsAreEventsOfTheirOwn) {
    const auto lines = events_of({{{},
                                   "<|channel>thought\nhm<channel|>So: "
                                   "<|tool_call>call:add{n:12345678901234567890}<tool_call|><turn|>"}});
    EXPECT_EQ(names_of(lines), (std::vector<std::string>{"start", "prefill", "prefill", "block", "reasoning",
                                                         "content", "tool_call", "end"}));
    EXPECT_EQ(lines[4].at("text"), "hm");
    EXPECT_EQ(lines[6],
              nlohmann::json::parse(
                  R"({"event":"tool_call","index":0,"name":"add","arguments":{"n":12345678901234567890}})"));
    EXPECT_EQ(lines[7].at("tool_calls")[0].at("name"), "add");
    EXPECT_EQ(lines[7].at("reasoning_content"), "hm");
}

TEST(JsonEvents, AStopStringEndsTheReply) {
    const auto lines = events_of({{{}, "one two"}, {{}, " three"}, {{}, " four"}}, {"o th"});
    EXPECT_EQ(lines.back().at("reason"), "stop_string");
    EXPECT_EQ(lines.back().at("content"), "one tw");
}

TEST(JsonEvents, AnErrorIsAnEventOnlyOnceThereWasAStart) {
    std::ostringstream out;
    JsonEvents events(out, demo_tokenizer(), {});
    events.error("refused");
    EXPECT_EQ(out.str(), "");
    events.on_prefill({.done = 0, .total = 1});
    events.error("broken \xff");
    EXPECT_NE(out.str().find("{\"event\":\"error\",\"message\":\"broken \xEF\xBF\xBD\"}\n"),
              std::string::npos);
}

TEST(JsonEvents, EveryNameAndKeyIsInTheDocument) {
    std::ifstream file(testing::source_dir() / "docs/EVENTS.md");
    const std::string document{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto lines =
        events_of({{{"a"}, "<|channel>thought\nhm<channel|>So<|tool_call>call:f{}<tool_call|><turn|>"}});
    lines.push_back({{"event", "error"}, {"message", ""}});
    lines.push_back(lines[lines.size() - 2].at("stats"));
    for (const auto& line : lines) {
        if (line.contains("event")) {
            EXPECT_NE(document.find("| `" + line.at("event").get<std::string>() + "` |"), std::string::npos)
                << line;
        }
        for (const auto& [key, value] : line.items()) {
            EXPECT_TRUE(key == "event" || document.find("`" + key + "`") != std::string::npos) << key;
        }
    }
}

}  // namespace
}  // namespace dgemma::cli
