// What a scheduler does pass by pass, without its thread: fairness, conversations, memory.
#include "engine/runner.h"

#include <gtest/gtest.h>

#include "engine/demo_model.h"

namespace dgemma::testing {
namespace {

using engine::FinishReason;
using engine::RequestId;
using engine::Reuse;
using engine::Runner;

class Client final : public engine::RequestSink {
  public:
    void on_start(const engine::StartEvent& event) override { started = event; }
    void on_prefill(const engine::PrefillEvent& event) override {
        prefilled = event.done;
        reused = event.reused;
    }
    void on_step(const engine::StepEvent& event) override { told.on_step(event); }
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override { return told.on_block(event); }
    void on_end(const engine::EndEvent& event) override { end = event; }
    void on_failure(const Error& error) override { failure = error; }

    Told told;
    int prefilled = 0, reused = 0;
    std::optional<engine::StartEvent> started;
    std::optional<engine::EndEvent> end;
    std::optional<Error> failure;
};

class RunnerTest : public ::testing::Test {
  protected:
    void make(engine::RunnerOptions options = {}) {
        if (options.memory_bytes == 0) options.memory_bytes = std::uint64_t{1} << 30;
        options.log = [this](std::string_view sentence) { log.emplace_back(sentence); };
        runner = std::make_unique<Runner>(demo_model(), std::move(options), nullptr);
    }
    std::shared_ptr<Client> submit(const engine::Request& request) {
        auto client = std::make_shared<Client>();
        runner->submit(++last, request, engine::check_request(demo_model(), request).value(), client,
                       Runner::Clock::now());
        return client;
    }
    void finish() {
        while (!runner->idle()) ASSERT_TRUE(runner->tick());
    }
    void settle() {
        finish();
        while (runner->tick()) {
        }
    }
    std::shared_ptr<Client> ask(const engine::Request& request) {
        auto client = submit(request);
        finish();
        EXPECT_TRUE(client->end) << (client->failure ? client->failure->message : "");
        return client;
    }
    static engine::Request with_prompt(Ids prompt) {
        engine::Request r = demo_request();
        r.prompt = std::move(prompt);
        return r;
    }
    // A request whose reply nobody waits for long.
    static engine::Request brief(Ids prompt) {
        engine::Request r = with_prompt(std::move(prompt));
        r.max_tokens = 8;
        r.diffusion.max_steps = 2;
        return r;
    }
    bool logged(const std::string& words) const {
        return std::any_of(log.begin(), log.end(),
                           [&](const std::string& s) { return s.find(words) != std::string::npos; });
    }

    std::unique_ptr<Runner> runner;
    std::vector<std::string> log;
    RequestId last = 0;
};

TEST_F(RunnerTest, ALongPromptDoesNotStopTheStepsOfOthers) {
    make();
    engine::Request slow = demo_request("Write a short story.");
    slow.diffusion.adaptive_stop = false;
    slow.diffusion.max_steps = 16;
    slow.max_tokens = 100;
    const auto writes = submit(slow);
    while (writes->told.argmax.empty()) ASSERT_TRUE(runner->tick());
    const auto reads = submit(brief(filler(640)));
    const std::size_t before = writes->told.argmax.size();
    while (reads->prefilled < 640 && !writes->end) ASSERT_TRUE(runner->tick());
    const std::size_t steps = writes->told.argmax.size() - before;
    // 640 tokens in pieces of 64 are 10 passes; a step between each two.
    EXPECT_GE(steps, 9u);
    EXPECT_LE(steps, 11u);
}

TEST_F(RunnerTest, AShortPromptDoesNotWaitForALongOne) {
    make();
    const auto reads = submit(brief(filler(1500)));
    ASSERT_TRUE(runner->tick());
    const auto asks = submit(demo_request());
    int ticks = 0;
    while (!asks->end) {
        ASSERT_TRUE(runner->tick());
        ASSERT_LT(++ticks, 30);
    }
    EXPECT_LT(reads->prefilled, 1500);
    EXPECT_EQ(asks->told.ids, alone(demo_request()).told.ids);
}

TEST_F(RunnerTest, TheNextTurnGoesOnWhereTheLastOneEnded) {
    make();
    const auto first = ask(demo_request());
    EXPECT_EQ(first->started->reuse, Reuse::none);
    EXPECT_FALSE(first->started->reason.empty());
    const Ids prompt =
        ids_of(question("What is the capital of France?") + "The capital of France is Paris.<turn|>\n" +
               question("What is the capital of Japan?").substr(5));
    const auto second = ask(with_prompt(prompt));
    EXPECT_EQ(second->started->reuse, Reuse::prefix);
    EXPECT_EQ(second->started->reused_tokens, static_cast<int>(demo_request().prompt.size()));
    EXPECT_EQ(second->end->stats.reused_tokens, second->started->reused_tokens);
    EXPECT_EQ(second->reused, second->started->reused_tokens);
    EXPECT_EQ(second->end->stats.reuse, Reuse::prefix);
    EXPECT_EQ(second->told.inputs, alone(with_prompt(prompt)).told.inputs);
    EXPECT_EQ(second->told.argmax, alone(with_prompt(prompt)).told.argmax);
    EXPECT_EQ(runner->stats().conversations, 1);
    // The first turn asked again: it has a copy of its own.
    const auto again = ask(demo_request());
    EXPECT_EQ(again->started->reused_tokens, static_cast<int>(demo_request().prompt.size()));
    EXPECT_EQ(again->started->reuse, Reuse::forked);
    EXPECT_EQ(runner->stats().conversations, 2);
    EXPECT_EQ(again->told.argmax, first->told.argmax);
    EXPECT_EQ(runner->stats().reused_tokens,
              static_cast<std::uint64_t>(second->started->reused_tokens + again->started->reused_tokens));
}

TEST_F(RunnerTest, WhatTheNextTurnBeginsWithIsEncodedInIdleTime) {
    make();
    engine::Request r = demo_request();
    Ids history =
        ids_of(question("What is the capital of France?") + "The capital of France is Paris.<turn|>\n");
    Ids delivered;
    r.next_prompt = [&](std::span<const std::int32_t> reply, const engine::EndEvent& end) {
        delivered.assign(reply.begin(), reply.end());
        EXPECT_EQ(end.reason, FinishReason::stop);
        return history;
    };
    const auto first = submit(r);
    settle();
    EXPECT_EQ(delivered, first->told.ids);
    Ids prompt = history;
    const Ids more = ids_of(question("What is the capital of Japan?").substr(5));
    prompt.insert(prompt.end(), more.begin(), more.end());
    const auto second = ask(with_prompt(prompt));
    EXPECT_EQ(second->started->reused_tokens, static_cast<int>(history.size()));
    EXPECT_EQ(second->started->reuse, Reuse::prefix);
    EXPECT_EQ(second->told.argmax, alone(with_prompt(prompt)).told.argmax);
}

TEST_F(RunnerTest, ASharedBeginningIsCopied) {
    make();
    const Ids system = filler(100);
    const auto prompt = [&](int seed, std::size_t tokens) {
        Ids ids = system;
        const Ids own = filler(tokens, seed);
        ids.insert(ids.end(), own.begin(), own.end());
        return ids;
    };
    ask(brief(prompt(2, 150)));
    const auto other = ask(brief(prompt(3, 40)));
    EXPECT_EQ(other->started->reuse, Reuse::none)
        << "150 more tokens have turned the ring over: " << other->started->reason;
    EXPECT_TRUE(logged("window")) << "with its reason";
    const auto third = ask(brief(prompt(4, 130)));
    EXPECT_EQ(third->started->reuse, Reuse::forked);
    EXPECT_EQ(third->started->reused_tokens, 100);
    EXPECT_EQ(third->told.argmax, alone(brief(prompt(4, 130))).told.argmax);
    make({.rewind_tokens = 256});
    ask(brief(prompt(2, 150)));
    const auto forked = ask(brief(prompt(3, 40)));
    EXPECT_EQ(forked->started->reuse, Reuse::forked);
    EXPECT_EQ(forked->started->reused_tokens, 100);
    EXPECT_EQ(forked->told.argmax, alone(brief(prompt(3, 40))).told.argmax);
    const auto first_again = ask(brief(prompt(2, 150)));
    EXPECT_EQ(first_again->started->reused_tokens, 250) << "the other conversation is as it was";
    EXPECT_EQ(runner->stats().forks, 1u);
    // While one runs, its beginning can be had too.
    const auto running = submit(brief(prompt(5, 60)));
    while (running->prefilled < 160) ASSERT_TRUE(runner->tick());
    const auto beside = submit(brief(prompt(5, 60)));
    finish();
    EXPECT_EQ(beside->started->reused_tokens, 160);
    EXPECT_EQ(beside->told.argmax, running->told.argmax);
}

TEST_F(RunnerTest, ToolTurnsGoOnFromTheRawLog) {
    make();
    engine::Request round = demo_request();
    const auto first = ask(round);
    const RequestId first_round = last;
    ASSERT_EQ(first->end->stop_id, 106);
    Ids raw = round.prompt;
    raw.insert(raw.end(), first->told.ids.begin(), first->told.ids.end());
    raw.push_back(106);
    engine::Request next =
        demo_request("What is the capital of Japan?");  // a rendering that is quite different
    next.continuation = {.round = first_round, .suffix = ids_of("\n" + question("And of Italy?").substr(5))};
    Ids expected = raw;
    expected.insert(expected.end(), next.continuation.suffix.begin(), next.continuation.suffix.end());
    const Ids as_raw = alone(with_prompt(expected)).told.ids, as_rendered = alone(next).told.ids;

    engine::Request exact = next;
    exact.exact = true;
    EXPECT_NE(ask(exact)->end->stats.reuse, Reuse::raw_log) << "off in exact mode";
    const auto second = ask(next);
    EXPECT_EQ(second->end->stats.reuse, Reuse::raw_log);
    EXPECT_EQ(second->end->stats.approximations, std::vector<std::string>{"raw_tool_turn"});
    EXPECT_EQ(second->started->prompt_tokens, static_cast<int>(expected.size()));
    EXPECT_EQ(second->end->stats.prompt_tokens, static_cast<int>(expected.size()));
    EXPECT_GE(second->started->reused_tokens, static_cast<int>(round.prompt.size()));
    EXPECT_EQ(second->told.ids, as_raw);
    EXPECT_TRUE(logged("raw token log"));
    const auto repeated = ask(next);
    EXPECT_EQ(repeated->end->stats.reuse, Reuse::raw_log);
    EXPECT_EQ(repeated->told.argmax, second->told.argmax);
    engine::Request unknown = next;
    unknown.continuation.round = 4711;
    EXPECT_EQ(ask(unknown)->told.ids, as_rendered) << "what is not held is answered as it is rendered";
    // A rendering that says the same is no exception to anything.
    const auto base = ask(demo_request("What is 3 + 4?"));
    engine::Request same = with_prompt(demo_request("What is 3 + 4?").prompt);
    same.prompt.insert(same.prompt.end(), base->told.ids.begin(), base->told.ids.end());
    if (base->end->stop_id) same.prompt.push_back(*base->end->stop_id);
    same.continuation = {.round = last, .suffix = ids_of("\n<|turn>model\n")};
    same.prompt.insert(same.prompt.end(), same.continuation.suffix.begin(), same.continuation.suffix.end());
    const auto plain = ask(same);
    EXPECT_EQ(plain->end->stats.reuse, Reuse::prefix);
    EXPECT_TRUE(plain->end->stats.approximations.empty());
}

TEST_F(RunnerTest, IdleConversationsGiveWayInTheOrderOfTheirUse) {
    const auto bytes = [](const engine::Request& r) {
        return engine::request_bytes(demo_model(), 0, engine::check_request(demo_model(), r).value());
    };
    const engine::Request a = brief(filler(150, 11)), b = brief(filler(150, 12)), c = brief(filler(150, 13));
    model::KvCache kind = demo_model().new_cache();
    // Room for two idle conversations and one that runs, not for three.
    make({.memory_bytes = 2 * kind.bytes_for(150) + bytes(a)});
    ask(a);
    ask(b);
    EXPECT_EQ(ask(a)->started->reused_tokens, 150);
    ask(c);
    EXPECT_EQ(runner->stats().evictions, 0u);
    ask(brief(filler(150, 14)));
    EXPECT_EQ(runner->stats().evictions, 1u);
    EXPECT_TRUE(logged("is evicted"));
    EXPECT_EQ(ask(a)->started->reused_tokens, 150) << "b was used longest ago";
    const auto b_again = ask(b);
    EXPECT_EQ(b_again->started->reused_tokens, 0);
    EXPECT_EQ(b_again->told.argmax, alone(b).told.argmax);
    EXPECT_LE(runner->stats().cache_bytes, runner->stats().memory_bytes);
}

TEST_F(RunnerTest, ManySmallConversationsAreTooManyToo) {
    make({.max_conversations = 3});
    for (int i = 0; i < 5; ++i) ask(brief(filler(20, 41 + i)));
    EXPECT_EQ(runner->stats().conversations, 3);
    EXPECT_EQ(runner->stats().evictions, 2u);
    EXPECT_EQ(ask(brief(filler(20, 43)))->started->reused_tokens, 20);
    EXPECT_EQ(ask(brief(filler(20, 42)))->started->reused_tokens, 0);
}

TEST_F(RunnerTest, WithoutMemoryForACopyTheConversationItselfIsTakenBack) {
    const engine::Request long_one = brief(filler(400, 51)), part = brief(filler(200, 51));
    make({.memory_bytes =
              engine::request_bytes(demo_model(), 512, engine::check_request(demo_model(), long_one).value()),
          .rewind_tokens = 512});
    ask(long_one);
    const auto second = ask(part);
    EXPECT_EQ(second->started->reuse, Reuse::rewound) << second->started->reason;
    EXPECT_EQ(second->started->reused_tokens, 200);
    EXPECT_EQ(second->told.argmax, alone(part).told.argmax);
    const auto other = ask(brief(filler(400, 52)));
    EXPECT_EQ(other->started->reuse, Reuse::none);
    EXPECT_EQ(runner->stats().evictions, 1u);
}

TEST_F(RunnerTest, RequestsWaitForMemoryAndAllAreAnswered) {
    engine::Request r = brief(filler(150, 21));
    const std::uint64_t one =
        engine::request_bytes(demo_model(), 0, engine::check_request(demo_model(), r).value());
    make({.memory_bytes = 2 * one + one / 2});
    std::vector<std::shared_ptr<Client>> all(6);
    for (int i = 0; i < 6; ++i) all[static_cast<std::size_t>(i)] = submit(brief(filler(150, 21 + i)));
    int most = 0;
    while (!runner->idle()) {
        ASSERT_TRUE(runner->tick());
        most = std::max(most, runner->stats().running);
        EXPECT_LE(std::max(runner->stats().cache_bytes, runner->stats().reserved_bytes),
                  runner->stats().memory_bytes);
    }
    EXPECT_EQ(most, 2);
    for (int i = 0; i < 6; ++i) {
        ASSERT_TRUE(all[static_cast<std::size_t>(i)]->end);
        EXPECT_EQ(all[static_cast<std::size_t>(i)]->told.argmax,
                  alone(brief(filler(150, 21 + i))).told.argmax)
            << i;
    }
}

// Prompts that begin with the same `common` tokens and go on differently.
Ids behind_common(std::size_t common, int own) {
    Ids ids = filler(common, 80);
    const Ids rest = filler(20, own);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
}

TEST_F(RunnerTest, WhatPromptsThatArriveTogetherBeginWithIsEncodedOnce) {
    make();
    std::vector<std::shared_ptr<Client>> all;
    for (int i = 0; i < 6; ++i) all.push_back(submit(brief(behind_common(300, 81 + i))));
    const auto other = submit(brief(filler(16, 90)));
    ASSERT_TRUE(runner->tick());
    EXPECT_TRUE(other->started) << "who has nothing in common with them does not wait";
    EXPECT_EQ(runner->stats().running, 2);
    EXPECT_EQ(runner->stats().queued, 5);
    finish();
    EXPECT_EQ(runner->stats().encoded_tokens, 300u + 6 * 20 + 16);
    EXPECT_EQ(runner->stats().shared_prefills, 5u);
    EXPECT_TRUE(logged("encodes what both prompts begin with"));
    for (int i = 0; i < 6; ++i) {
        const Client& one = *all[static_cast<std::size_t>(i)];
        ASSERT_TRUE(one.end) << i;
        EXPECT_EQ(one.started->reused_tokens, i == 0 ? 0 : 300) << i;
        EXPECT_EQ(one.started->reuse, i == 0 ? Reuse::none : Reuse::forked) << i;
        EXPECT_EQ(one.told.argmax, alone(brief(behind_common(300, 81 + i))).told.argmax) << i;
    }
}

TEST_F(RunnerTest, LittleInCommonIsEncodedTwice) {
    make();
    submit(brief(behind_common(60, 81)));
    submit(brief(behind_common(60, 82)));
    ASSERT_TRUE(runner->tick());
    EXPECT_EQ(runner->stats().running, 2);
    finish();
    EXPECT_EQ(runner->stats().shared_prefills, 0u);
}

TEST_F(RunnerTest, WhoWaitsForACancelledOneGoesOnFromWhatItHad) {
    make();
    submit(brief(behind_common(300, 81)));
    const RequestId first = last;
    const auto second = submit(brief(behind_common(300, 82))), third = submit(brief(behind_common(300, 83)));
    ASSERT_TRUE(runner->tick());
    ASSERT_TRUE(runner->tick());
    EXPECT_EQ(runner->stats().queued, 2);
    runner->stop(first, FinishReason::cancelled);
    finish();
    EXPECT_EQ(runner->stats().encoded_tokens, 300u + 2 * 20);
    EXPECT_EQ(second->told.argmax, alone(brief(behind_common(300, 82))).told.argmax);
    EXPECT_EQ(third->told.argmax, alone(brief(behind_common(300, 83))).told.argmax);
    // One that waits can be cancelled, too.
    submit(brief(filler(300, 95)));
    const auto waiting = submit(brief(filler(300, 95)));
    ASSERT_TRUE(runner->tick());
    runner->stop(last, FinishReason::cancelled);
    EXPECT_EQ(waiting->end->reason, FinishReason::cancelled);
    finish();
}

TEST_F(RunnerTest, WhoWaitsKeepsItsPlace) {
    make({.max_running = 2});
    submit(brief(behind_common(300, 81)));
    const auto waits = submit(brief(behind_common(300, 82))), later = submit(brief(filler(16, 91)));
    ASSERT_TRUE(runner->tick());
    EXPECT_FALSE(later->started) << "the second place is the second one's";
    finish();
    EXPECT_EQ(waits->started->reused_tokens, 300);
    EXPECT_TRUE(later->end);
    // And its memory.
    const engine::Request two = brief(behind_common(300, 82));
    const std::uint64_t one =
        engine::request_bytes(demo_model(), 0, engine::check_request(demo_model(), two).value());
    make({.memory_bytes = 2 * one + one / 8});
    submit(brief(behind_common(300, 81)));
    const auto next = submit(two), last_one = submit(brief(filler(150, 91)));
    ASSERT_TRUE(runner->tick());
    EXPECT_FALSE(last_one->started);
    finish();
    EXPECT_EQ(next->started->reused_tokens, 300);
    EXPECT_EQ(next->told.argmax, alone(two).told.argmax);
    EXPECT_TRUE(last_one->end);
}

TEST_F(RunnerTest, LogitsNobodyUsesCountAndAreTheFirstToGo) {
    const engine::Request a = brief(filler(150, 61)), b = brief(filler(150, 62));
    const auto bytes = [](const engine::Request& r) {
        return engine::request_bytes(demo_model(), 0, engine::check_request(demo_model(), r).value());
    };
    const std::uint64_t idle = demo_model().new_cache().bytes_for(150);
    make({.memory_bytes = bytes(a) + idle});
    ask(a);
    EXPECT_GT(runner->stats().unused_logits_bytes, 0u);
    const auto second = submit(b);
    while (!runner->idle()) {
        ASSERT_TRUE(runner->tick());
        const engine::SchedulerStats& s = runner->stats();
        EXPECT_LE(std::max(s.cache_bytes, s.reserved_bytes) + s.unused_logits_bytes, s.memory_bytes);
    }
    EXPECT_EQ(runner->stats().evictions, 0u) << "a conversation is worth more than they are";
    EXPECT_EQ(ask(a)->started->reused_tokens, 150);
}

TEST_F(RunnerTest, PassesArePutTogetherFromAllThatAreReady) {
    make();
    std::vector<std::shared_ptr<Client>> all;
    for (int i = 0; i < 4; ++i) {
        engine::Request r = brief(filler(16, 31 + i));
        r.exact = true;
        r.diffusion.adaptive_stop = false;
        all.push_back(submit(r));
    }
    ASSERT_TRUE(runner->tick());
    EXPECT_EQ(runner->stats().encode_passes, 1u) << "four prompts of 16 tokens fit one pass of 64";
    EXPECT_EQ(runner->stats().encoded_tokens, 64u);
    ASSERT_TRUE(runner->tick());
    ASSERT_TRUE(runner->tick());
    EXPECT_EQ(runner->stats().denoise_passes, 2u);
    EXPECT_EQ(runner->stats().denoise_steps, 8u);
    EXPECT_TRUE(runner->idle());
    EXPECT_FALSE(runner->tick());
}

}  // namespace
}  // namespace dgemma::testing
