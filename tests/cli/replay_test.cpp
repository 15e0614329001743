// replay as it is typed.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "engine/scheduler.h"
#include "files/checkpoint.h"
#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::cli {
namespace {

struct Outcome {
    int code = 0;
    std::string out, err;
};

Outcome typed(const std::vector<std::string>& words) {
    std::istringstream in;
    std::ostringstream out, err;
    Console console{.in = in, .out = out, .err = err};
    Outcome outcome;
    outcome.code = run(words, {}, console);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
}

class Listener final : public engine::RequestSink {
  public:
    void on_failure(const Error&) override {}
};

TEST(Replay, SaysThatARecordCameOutTheSameOrWhereItDid) {
    const testing::ScratchDir dir;
    const auto file = dir.path() / "record.jsonl";
    const files::Checkpoint checkpoint = files::Checkpoint::open(testing::demo_dir()).value();
    {
        auto scheduler =
            engine::Scheduler::start(
                checkpoint, {.threads = 1},
                {.record = file, .model_name = testing::demo_dir().string(), .version = "an older one"})
                .value();
        engine::Request request;
        request.prompt = {2, 105, 300, 301, 302};
        request.max_tokens = 20;
        request.diffusion = scheduler->default_options();
        request.diffusion.max_steps = 2;
        request.exact = true;
        ASSERT_TRUE(scheduler->submit(request, std::make_shared<Listener>()).ok());
        ASSERT_TRUE(scheduler->wait_idle(std::chrono::minutes(5)));
    }
    const Outcome same = typed({"replay", file.string()});
    EXPECT_EQ(same.code, 0) << same.err;
    EXPECT_EQ(same.out, "1 request in 10 lines: the same\n");
    EXPECT_NE(same.err.find("an older one"), std::string::npos) << same.err;

    std::ifstream in(file);
    std::string text(std::istreambuf_iterator<char>(in), {});
    text.replace(text.find("\"accepted\":"), 11, "\"accepted\":1");
    const auto changed = dir.write("changed.jsonl", text + "{\"t\"");
    const Outcome other = typed({"replay", changed.string(), "--json", "-m", testing::demo_dir().string()});
    EXPECT_EQ(other.code, 1);
    const auto json = nlohmann::json::parse(other.out);
    EXPECT_EQ(json["same"], false);
    EXPECT_EQ(json["difference"]["what"], "accepted");
    EXPECT_EQ(json["difference"]["line"], 6);
    EXPECT_EQ(json["requests"], 1);
}

TEST(Replay, WantsOneRecord) {
    EXPECT_EQ(typed({"replay"}).code, 2);
    EXPECT_EQ(typed({"replay", "a", "b"}).code, 2);
    const Outcome absent = typed({"replay", "/nonexistent/record"});
    EXPECT_EQ(absent.code, 1);
    EXPECT_NE(absent.err.find("/nonexistent/record"), std::string::npos);
}

}  // namespace
}  // namespace dgemma::cli
