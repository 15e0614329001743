// The event log: written line by line, readable after a kill, executed again with the same outcome.
#include "engine/record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/demo_model.h"
#include "engine/replay.h"
#include "engine/scheduler.h"
#include "support/scratch.h"

namespace dgemma::testing {
namespace {

using engine::RequestId;
using engine::Scheduler;

class Client final : public engine::RequestSink {
  public:
    void on_start(const engine::StartEvent& event) override { id = event.id; }
    void on_step(const engine::StepEvent&) override {
        if (cancel_with != nullptr) cancel_with->cancel(id);
    }
    engine::BlockVerdict on_block(const engine::BlockEvent&) override { return verdict; }
    void on_failure(const Error&) override {}
    RequestId id = 0;
    Scheduler* cancel_with = nullptr;
    engine::BlockVerdict verdict = engine::BlockVerdict::go_on;
};

std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

std::unique_ptr<Scheduler> start(const std::filesystem::path& record) {
    return Scheduler::start(
               demo_checkpoint(), demo_load(),
               {.max_running = 3, .record = record, .model_name = "models/demo", .version = "test"})
        .value();
}

// Everything that a record can hold: neighbours, answers of functions, verdicts, cancels, deadlines,
// failures, conversations, tool turns.
void run_something(const std::filesystem::path& record) {
    auto scheduler = start(record);
    const auto submit = [&](const engine::Request& r, const std::shared_ptr<Client>& client) {
        auto id = scheduler->submit(r, client);
        EXPECT_TRUE(id.ok()) << (id ? "" : id.error().message);
        return id ? id.value() : 0;
    };
    engine::Request asked = demo_request();
    asked.shows_nothing = [](std::span<const std::int32_t> reply) { return reply.size() < 3; };
    asked.inside_quote = [](std::span<const std::int32_t>) { return false; };
    asked.next_prompt = [&](std::span<const std::int32_t> reply, const engine::EndEvent&) {
        Ids ids = demo_request().prompt;
        ids.insert(ids.end(), reply.begin(), reply.end());
        return ids;
    };
    const RequestId first = submit(asked, std::make_shared<Client>());
    engine::Request counts = demo_request("Count from 1 to 60.");
    counts.diffusion.max_steps = 3;
    counts.diffusion.temperature = 0.7f;
    counts.diffusion.seed = 18446744073709551615u;
    counts.stop_ids = {2047};
    counts.pins = {{3, 700}};
    counts.max_tokens = 300;
    submit(counts, std::make_shared<Client>());
    auto stops = std::make_shared<Client>();
    stops->verdict = engine::BlockVerdict::stop_string;
    submit(counts, stops);
    auto cancelled = std::make_shared<Client>();
    cancelled->cancel_with = scheduler.get();
    submit(counts, cancelled);
    engine::Request late = counts;
    late.deadline = std::chrono::steady_clock::now();
    submit(late, std::make_shared<Client>());
    engine::Request bad = demo_request();
    bad.pins = {{500, 1}};
    submit(bad, std::make_shared<Client>());
    EXPECT_TRUE(scheduler->wait_idle(std::chrono::minutes(5)));
    engine::Request next = demo_request("What is 3 + 4?");
    next.continuation = {.round = first, .suffix = ids_of("\n" + question("And Japan?").substr(5))};
    submit(next, std::make_shared<Client>());
    EXPECT_TRUE(scheduler->wait_idle(std::chrono::minutes(5)));
}

class RecordTest : public ::testing::Test {
  protected:
    static const std::string& recorded() {
        static const std::string text = [] {
            const ScratchDir dir;
            run_something(dir.path() / "record.jsonl");
            return text_of(dir.path() / "record.jsonl");
        }();
        return text;
    }
    std::filesystem::path write(const std::string& text) const { return dir_.write("replayed.jsonl", text); }
    ScratchDir dir_;
};

TEST_F(RecordTest, HoldsEveryKindOfLine) {
    std::map<std::string, int> kinds;
    for (const std::string& line : lines_of(recorded())) {
        const auto json = nlohmann::json::parse(line);
        ++kinds[json.value("op", json.value("event", "record"))];
    }
    for (const char* kind : {"record", "submit", "stop", "start", "encode", "denoise", "step", "ask", "block",
                             "end", "failure", "next_prompt"}) {
        EXPECT_GT(kinds[kind], 0) << kind;
    }
    EXPECT_EQ(kinds["submit"], 7);
    EXPECT_EQ(kinds["end"] + kinds["failure"], 7);
    const auto header = nlohmann::json::parse(lines_of(recorded()).front());
    EXPECT_EQ(header["record"], 1);
    EXPECT_EQ(header["version"], "test");
    EXPECT_EQ(recorded().back(), '\n');
}

TEST_F(RecordTest, ReplaysWithoutADifference) {
    const auto report = engine::replay(write(recorded()), demo_checkpoint());
    ASSERT_TRUE(report.ok()) << report.error().message;
    const auto& r = report.value();
    EXPECT_FALSE(r.difference) << r.difference->line << " " << r.difference->what << ": "
                               << r.difference->recorded << " now " << r.difference->now;
    EXPECT_EQ(r.lines, lines_of(recorded()).size());
    EXPECT_EQ(r.requests, 7u);
    EXPECT_EQ(r.runs, 1);
    EXPECT_FALSE(r.cut_off);
}

TEST_F(RecordTest, TheFirstDifferenceIsFound) {
    std::vector<std::string> lines = lines_of(recorded());
    std::size_t at = 0;
    while (lines[at].find("\"event\":\"block\"") == std::string::npos) ++at;
    auto json = nlohmann::ordered_json::parse(lines[at]);
    const int was = json["canvas"][2].get<int>();
    json["canvas"][2] = was + 1;
    lines[at] = json.dump();
    std::string changed;
    for (const std::string& line : lines) changed += line + "\n";
    const auto report = engine::replay(write(changed), demo_checkpoint());
    ASSERT_TRUE(report.ok()) << report.error().message;
    ASSERT_TRUE(report.value().difference);
    EXPECT_EQ(report.value().difference->line, at + 1);
    EXPECT_EQ(report.value().difference->what, "canvas[2]");
    EXPECT_EQ(report.value().difference->recorded, std::to_string(was + 1));
    EXPECT_EQ(report.value().difference->now, std::to_string(was));
    EXPECT_EQ(report.value().lines, at);
}

TEST_F(RecordTest, AnotherRequestIsADifferenceToo) {
    std::string changed = recorded();
    const std::size_t seed = changed.find("\"seed\":18446744073709551615");
    ASSERT_NE(seed, std::string::npos);
    changed.replace(seed, 27, "\"seed\":1");
    const auto report = engine::replay(write(changed), demo_checkpoint());
    ASSERT_TRUE(report.ok()) << report.error().message;
    ASSERT_TRUE(report.value().difference);
    const std::string first = lines_of(recorded()).at(report.value().difference->line - 1);
    EXPECT_NE(first.find("\"event\":\"step\""), std::string::npos) << first;
}

TEST_F(RecordTest, AKilledProcessLeavesItsCompleteLines) {
    const std::vector<std::string> lines = lines_of(recorded());
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < lines.size() / 2; ++i) bytes += lines[i].size() + 1;
    const auto file = write(recorded().substr(0, bytes + 10));
    const auto report = engine::replay(file, demo_checkpoint());
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_FALSE(report.value().difference);
    EXPECT_TRUE(report.value().cut_off);
    EXPECT_EQ(report.value().lines, lines.size() / 2);
    // The next run cuts the half line off and goes on behind it.
    { auto scheduler = start(file); }
    const std::vector<std::string> now = lines_of(text_of(file));
    ASSERT_EQ(now.size(), lines.size() / 2 + 1);
    EXPECT_EQ(now[lines.size() / 2 - 1], lines[lines.size() / 2 - 1]);
    EXPECT_EQ(now.back(), lines.front());
    const auto both = engine::replay(file, demo_checkpoint());
    ASSERT_TRUE(both.ok()) << both.error().message;
    EXPECT_EQ(both.value().runs, 2);
    EXPECT_FALSE(both.value().difference);
}

TEST_F(RecordTest, KeysAndValuesAreReplayedInTheirType) {
    const auto file = write("");
    {
        engine::LoadOptions load = demo_load();
        load.kv = Dtype::f16;
        auto scheduler = Scheduler::start(demo_checkpoint(), load,
                                          {.record = file, .model_name = "models/demo", .version = "test"})
                             .value();
        ASSERT_TRUE(scheduler->submit(demo_request(), std::make_shared<Client>()));
        ASSERT_TRUE(scheduler->wait_idle(std::chrono::minutes(5)));
    }
    std::string text = text_of(file);
    const auto report = engine::replay(file, demo_checkpoint());
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_FALSE(report.value().difference);
    // In another type the numbers are others.
    const std::string said = R"("kv":"f16")";
    ASSERT_NE(text.find(said), std::string::npos);
    text.replace(text.find(said), said.size(), R"("kv":"bf16")");
    const auto other = engine::replay(write(text), demo_checkpoint());
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_TRUE(other.value().difference);
}

TEST_F(RecordTest, NonsenseIsASentence) {
    const std::string header = lines_of(recorded()).front() + "\n";
    const auto refused = [&](const std::string& text) {
        const auto report = engine::replay(write(text), demo_checkpoint());
        EXPECT_FALSE(report.ok()) << text.substr(0, 80);
        return report ? std::string() : report.error().message;
    };
    refused("");
    refused("not json\n");
    refused("{\"record\":1}\n");
    EXPECT_NE(refused("{\"record\":99}\n").find("99"), std::string::npos);
    EXPECT_NE(refused(header + "[1]\n").find("line 2"), std::string::npos);
    EXPECT_NE(refused(header + std::string(100000, '[') + "\n").find("line 2"), std::string::npos);
    refused(header + "{\"t\":0,\"op\":\"submit\",\"id\":1}\n");
    refused(header + "{\"t\":0,\"op\":5}\n");
    std::string other = header;
    other.replace(other.find("\"vocabulary\":2048"), 17, "\"vocabulary\":4096");
    EXPECT_NE(refused(other).find("4096"), std::string::npos);
    EXPECT_EQ(engine::replay(dir_.path() / "absent", demo_checkpoint()).error().kind, ErrorKind::not_found);
    EXPECT_EQ(engine::read_record_header(write(header)).value().model, "models/demo");
    // Something that never happened.
    const auto report =
        engine::replay(write(header + "{\"t\":1,\"event\":\"denoise\",\"ids\":[1]}\n"), demo_checkpoint());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report.value().difference->now, "nothing");
}

TEST(RecordFile, SaysWhyItCannotBeWritten) {
    const auto nowhere = engine::RecordFile::open("/nonexistent/record");
    ASSERT_FALSE(nowhere.ok());
    EXPECT_NE(nowhere.error().message.find("/nonexistent/record"), std::string::npos);
    if (std::filesystem::exists("/dev/full")) {
        auto full = engine::RecordFile::open("/dev/full").value();
        full->line("{}");
        EXPECT_TRUE(full->broken());
    }
}

TEST(RecordFile, IsWrittenByOneAtATime) {
    const ScratchDir directory;
    const auto file = directory.path() / "record";
    auto first = engine::RecordFile::open(file);
    ASSERT_TRUE(first.ok());
    const auto second = engine::RecordFile::open(file);
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("another process"), std::string::npos) << second.error().message;
    first.value().reset();
    EXPECT_TRUE(engine::RecordFile::open(file).ok());
}

TEST(JsonLine, EscapesAndRoundTrips) {
    engine::JsonLine line;
    const Ids ids = {-1, 0, 262143};
    line.add("a\"b", "x\\\n\x01\xc3\xa4")
        .add("f", 0.1f)
        .add("d", 0.1)
        .add("below", -0.0)
        .add("inf", std::numeric_limits<float>::infinity())
        .add("u", std::uint64_t{18446744073709551615u})
        .add("ids", ids)
        .add("yes", true);
    const auto json = nlohmann::json::parse(line.text());
    EXPECT_EQ(json["a\"b"], "x\\\n\x01\xc3\xa4");
    EXPECT_EQ(json["f"].get<float>(), 0.1f);
    EXPECT_EQ(json["d"].get<double>(), 0.1);
    EXPECT_TRUE(std::signbit(json["below"].get<double>()));
    EXPECT_TRUE(json["inf"].is_null());
    EXPECT_EQ(json["u"].get<std::uint64_t>(), 18446744073709551615u);
    EXPECT_EQ(json["ids"].get<Ids>(), ids);
    EXPECT_EQ(json["yes"], true);
    EXPECT_EQ(engine::JsonLine().text(), "{}");
}

}  // namespace
}  // namespace dgemma::testing
