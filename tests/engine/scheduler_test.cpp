// Many requests at once answer as each does alone, whatever else happens around them.
#include "engine/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "engine/demo_model.h"
#include "engine/runner.h"
#include "support/scratch.h"

namespace dgemma::testing {
namespace {

using engine::FinishReason;
using engine::RequestId;
using engine::Scheduler;
using engine::SchedulerOptions;

constexpr std::chrono::minutes long_enough{5};

// Keeps what it is told; another thread may wait for the end.
class Client final : public engine::RequestSink {
  public:
    void on_start(const engine::StartEvent& event) override {
        EXPECT_FALSE(started);
        started = event;
    }
    void on_step(const engine::StepEvent& event) override {
        told.on_step(event);
        if (at_step) at_step();
    }
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override {
        told.on_block(event);
        return verdict;
    }
    void on_end(const engine::EndEvent& event) override {
        const std::lock_guard lock(mutex_);
        EXPECT_EQ(++ends_, 1);
        end = event;
        done_.notify_all();
    }
    void on_failure(const Error& error) override {
        const std::lock_guard lock(mutex_);
        EXPECT_EQ(++ends_, 1);
        failure = error;
        done_.notify_all();
    }
    bool wait() {
        std::unique_lock lock(mutex_);
        return done_.wait_for(lock, long_enough, [&] { return ends_ > 0; });
    }
    [[nodiscard]] FinishReason reason() {
        EXPECT_TRUE(wait());
        EXPECT_TRUE(end.has_value()) << (failure ? failure->message : "");
        return end ? end->reason : FinishReason::cancelled;
    }

    Told told;
    std::optional<engine::StartEvent> started;
    std::optional<engine::EndEvent> end;
    std::optional<Error> failure;
    std::function<void()> at_step;
    engine::BlockVerdict verdict = engine::BlockVerdict::go_on;

  private:
    std::mutex mutex_;
    std::condition_variable done_;
    int ends_ = 0;
};

std::unique_ptr<Scheduler> start(const SchedulerOptions& options = {}) {
    return Scheduler::start(demo_checkpoint(), demo_load(), options).value();
}

struct Submitted {
    std::shared_ptr<Client> client = std::make_shared<Client>();
    RequestId id = 0;
};
Submitted submit(Scheduler& scheduler, engine::Request request) {
    Submitted out;
    auto id = scheduler.submit(std::move(request), out.client);
    EXPECT_TRUE(id.ok()) << (id ? "" : id.error().message);
    if (id) out.id = id.value();
    return out;
}

// Requests as unlike each other as they can be.
std::vector<engine::Request> assorted() {
    std::vector<engine::Request> all;
    for (const char* asked : {"What is the capital of France?", "Sort: 5 3 9 1.", "What is 3 + 4?",
                              "What is the capital of Japan?"}) {
        all.push_back(demo_request(asked));
    }
    engine::Request drawn = demo_request("Write a short story.");
    drawn.diffusion.temperature = 1;
    drawn.diffusion.seed = 3;
    drawn.diffusion.max_steps = 6;
    drawn.max_tokens = 200;
    all.push_back(drawn);
    drawn.diffusion.sampler = diffusion::Sampler::confidence_threshold;
    drawn.canvas_length = 48;
    drawn.max_tokens = 60;
    all.push_back(drawn);
    engine::Request pinned = demo_request();
    pinned.pins = {{0, ids_of("Paris").at(0)}, {5, 777}};
    all.push_back(pinned);
    engine::Request sparse = demo_request("Count from 1 to 20.");
    sparse.soft_cutoff = 3;
    sparse.diffusion.max_steps = 5;
    all.push_back(sparse);
    engine::Request exact = sparse;
    exact.exact = true;
    all.push_back(exact);
    engine::Request longer = demo_request();
    longer.prompt = filler(500);
    longer.max_tokens = 140;
    longer.diffusion.max_steps = 3;
    all.push_back(longer);
    engine::Request rerolled = demo_request();
    rerolled.stop_ids = {alone(rerolled).told.ids.at(0)};
    all.push_back(rerolled);
    return all;
}

void expect_equal(const Told& got, const Told& expected, const std::string& which) {
    EXPECT_EQ(got.ids, expected.ids) << which;
    EXPECT_EQ(got.canvases, expected.canvases) << which;
    EXPECT_EQ(got.inputs, expected.inputs) << which;
    EXPECT_EQ(got.argmax, expected.argmax) << which;
}

TEST(SchedulerHeavy, NeighboursAndOrderChangeNothing) {
    const std::vector<engine::Request> requests = assorted();
    std::vector<Alone> expected(requests.size());
    std::transform(requests.begin(), requests.end(), expected.begin(), alone);
    for (const bool reversed : {false, true}) {
        auto scheduler = start();
        std::vector<Submitted> all(requests.size());
        for (std::size_t k = 0; k < requests.size(); ++k) {
            const std::size_t i = reversed ? requests.size() - 1 - k : k;
            all[i] = submit(*scheduler, requests[i]);
        }
        for (std::size_t i = 0; i < all.size(); ++i) {
            ASSERT_TRUE(all[i].client->wait());
            ASSERT_TRUE(all[i].client->end) << i;
            expect_equal(all[i].client->told, expected[i].told, std::to_string(i));
            EXPECT_EQ(all[i].client->end->reason, expected[i].end.reason) << i;
            EXPECT_EQ(all[i].client->end->stop_id, expected[i].end.stop_id) << i;
            EXPECT_EQ(all[i].client->end->stats.steps, expected[i].end.stats.steps) << i;
            EXPECT_EQ(all[i].client->end->stats.approximations, expected[i].end.stats.approximations) << i;
        }
        EXPECT_TRUE(scheduler->wait_idle(long_enough));
        const engine::SchedulerStats stats = scheduler->stats();
        EXPECT_EQ(stats.submitted, requests.size());
        EXPECT_EQ(stats.running, 0);
        EXPECT_LT(stats.denoise_passes, stats.denoise_steps);
        EXPECT_EQ(stats.request_seconds.count, requests.size());
    }
}

TEST(Scheduler, SixteenClientsSharePasses) {
    auto scheduler = start();
    const char* cities[] = {"France", "Japan", "Italy", "Spain"};
    std::vector<std::thread> clients(16);
    std::mutex mutex;
    int wrong = 0;
    std::vector<Alone> expected(4);
    std::transform(std::begin(cities), std::end(cities), expected.begin(), [](const char* city) {
        return alone(demo_request("What is the capital of " + std::string(city) + "?"));
    });
    for (int c = 0; c < 16; ++c) {
        clients[static_cast<std::size_t>(c)] = std::thread([&, c] {
            for (int k = 0; k < 2; ++k) {
                const auto which = static_cast<std::size_t>(c + k) % 4;
                auto one = submit(*scheduler,
                                  demo_request("What is the capital of " + std::string(cities[which]) + "?"));
                one.client->wait();
                const std::lock_guard lock(mutex);
                if (one.client->told.ids != expected[which].told.ids) ++wrong;
            }
        });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(wrong, 0);
    ASSERT_TRUE(scheduler->wait_idle(long_enough));
    const engine::SchedulerStats stats = scheduler->stats();
    EXPECT_EQ(stats.ended.at("stop"), 32u);
    EXPECT_LE(4 * stats.denoise_passes, stats.denoise_steps)
        << stats.denoise_passes << " passes for " << stats.denoise_steps << " steps";
}

TEST(SchedulerHeavy, AbortedRequestsLeaveTheOthersAndTheCachesAsTheyWere) {
    auto scheduler = start({.max_running = 6});
    const std::vector<engine::Request> requests = assorted();
    std::vector<Alone> expected(requests.size());
    std::transform(requests.begin(), requests.end(), expected.begin(), alone);
    std::uint32_t state = 7;
    const auto random = [&](std::uint32_t below) {
        state = state * 1664525u + 1013904223u;
        return (state >> 16) % below;
    };
    struct One {
        std::size_t which;
        bool aborted;
        Submitted submitted;
    };
    std::vector<One> all;
    for (int k = 0; k < 24; ++k) {
        One one{random(static_cast<std::uint32_t>(requests.size())), random(2) == 0, {}};
        auto* client = one.submitted.client.get();
        if (one.aborted) {
            const int after = static_cast<int>(random(4));
            auto steps = std::make_shared<int>(0);
            auto* s = scheduler.get();
            // From within a step, where the id is known from on_start.
            client->at_step = [=] {
                if (++*steps == after) s->cancel(client->started->id);
            };
        }
        auto id = scheduler->submit(requests[one.which], one.submitted.client);
        ASSERT_TRUE(id.ok());
        one.submitted.id = id.value();
        if (one.aborted && random(3) == 0)
            scheduler->cancel(one.submitted.id);  // still in the queue, perhaps
        all.push_back(std::move(one));
    }
    int cancelled = 0;
    for (One& one : all) {
        const FinishReason reason = one.submitted.client->reason();
        if (reason == FinishReason::cancelled) {
            EXPECT_TRUE(one.aborted);
            ++cancelled;
        } else {
            expect_equal(one.submitted.client->told, expected[one.which].told, std::to_string(one.which));
        }
    }
    EXPECT_GT(cancelled, 3);
    EXPECT_LT(cancelled, 20);
    // Every conversation that an aborted request left behind can be gone on from.
    for (std::size_t i = 0; i < requests.size(); ++i) {
        Submitted again = submit(*scheduler, requests[i]);
        again.client->wait();
        expect_equal(again.client->told, expected[i].told, "again " + std::to_string(i));
    }
}

TEST(Scheduler, CancelTakesEffectWithinOneStep) {
    auto scheduler = start();
    engine::Request r = demo_request("Write a long story about a cat.");
    r.diffusion.adaptive_stop = false;
    r.max_tokens = 2000;
    auto client = std::make_shared<Client>();
    int steps = 0;
    client->at_step = [&, c = client.get()] {
        if (++steps == 2) scheduler->cancel(c->started->id);
    };
    ASSERT_TRUE(scheduler->submit(r, client).ok());
    EXPECT_EQ(client->reason(), FinishReason::cancelled);
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(client->end->stats.steps, 2);
    scheduler->cancel(client->started->id);  // ended: ignored
    scheduler->cancel(12345);                // unknown: ignored
}

TEST(Scheduler, ADeadlineEndsARequestThatRunsAndOneThatWaits) {
    auto scheduler = start({.max_running = 1});
    engine::Request slow = demo_request("Write a long story about a cat.");
    slow.diffusion.adaptive_stop = false;
    slow.max_tokens = 3000;
    const auto now = std::chrono::steady_clock::now();
    slow.deadline = now + std::chrono::milliseconds(400);
    engine::Request waits = demo_request();
    waits.deadline = now + std::chrono::milliseconds(50);
    const Submitted first = submit(*scheduler, slow), second = submit(*scheduler, waits);
    EXPECT_EQ(second.client->reason(), FinishReason::deadline);
    EXPECT_FALSE(second.client->started);
    EXPECT_EQ(first.client->reason(), FinishReason::deadline);
    EXPECT_TRUE(first.client->started);
    EXPECT_TRUE(scheduler->wait_idle(long_enough));  // a client is told before the counters are shown
    EXPECT_EQ(scheduler->stats().submitted, 2u);
}

TEST(Scheduler, DoesNotStartWhereNoRequestHasRoom) {
    std::string warned;
    const auto problem = [&](int context, std::uint64_t memory) {
        engine::LoadOptions load = demo_load();
        load.context = context;
        warned.clear();
        const auto started = Scheduler::start(demo_checkpoint(), load,
                                              {.memory_bytes = memory,
                                               .least_prompt = 10,
                                               .rewind_tokens = 0,
                                               .warn = [&](std::string_view said) { warned = said; }});
        if (started) return std::string();
        EXPECT_EQ(started.error().kind, ErrorKind::usage);
        return started.error().message;
    };
    EXPECT_EQ(problem(138, 0), "");
    const std::string context = problem(137, 0);
    EXPECT_NE(context.find("137 tokens"), std::string::npos) << context;
    EXPECT_NE(context.find("--ctx be at least 138"), std::string::npos) << context;
    engine::ReplySetup shortest;
    shortest.canvas_length = 128;
    shortest.budget.positions = 138;
    const std::uint64_t least = engine::request_bytes(demo_model(), 0, shortest);
    EXPECT_EQ(problem(4096, least), "");
    EXPECT_NE(warned.find("may answer with 3968"), std::string::npos) << warned;
    EXPECT_EQ(problem(4096, 0), "");
    EXPECT_EQ(warned, "");
    const std::string memory = problem(4096, least - 1);
    EXPECT_NE(memory.find("need " + std::to_string(least) + ";"), std::string::npos) << memory;
    EXPECT_NE(memory.find("--cache-memory be at least " + std::to_string((least >> 20) + 1)),
              std::string::npos)
        << memory;
}

TEST(Scheduler, RefusalsSayTheNumbers) {
    engine::LoadedModel& demo = demo_model();
    const engine::Request small = demo_request();
    engine::Request large = small;
    large.max_tokens = 3000;
    const std::uint64_t needs_small =
        engine::request_bytes(demo, 0, engine::check_request(demo, small).value());
    const std::uint64_t needs_large =
        engine::request_bytes(demo, 0, engine::check_request(demo, large).value());
    engine::Request one_block = small;
    one_block.max_tokens = 100;
    const std::uint64_t needs_block =
        engine::request_bytes(demo, 0, engine::check_request(demo, one_block).value());
    EXPECT_LT(needs_block, needs_large);
    EXPECT_LE(needs_large, needs_small) << "the default takes what the context has";
    auto scheduler =
        start({.max_queue = 1, .max_running = 1, .memory_bytes = needs_block, .rewind_tokens = 0});
    const auto client = std::make_shared<Client>();
    const auto refused = [&](const engine::Request& r) {
        const auto result = scheduler->submit(r, client);
        EXPECT_FALSE(result.ok());
        return result ? Error{} : result.error();
    };
    const Error memory = refused(large);
    EXPECT_EQ(memory.kind, ErrorKind::memory);
    EXPECT_NE(memory.message.find(std::to_string(needs_large)), std::string::npos) << memory.message;
    EXPECT_NE(memory.message.find(std::to_string(needs_block)), std::string::npos) << memory.message;
    const int positions = static_cast<int>(small.prompt.size()) + 24 * 128;
    EXPECT_NE(memory.message.find(std::to_string(positions)), std::string::npos) << memory.message;
    engine::Request too_long = small;
    too_long.prompt = filler(4000);
    EXPECT_EQ(refused(too_long).kind, ErrorKind::context_length);
    engine::Request empty = small;
    empty.prompt.clear();
    EXPECT_EQ(refused(empty).kind, ErrorKind::usage);
    engine::Request stray = one_block;
    stray.continuation = {.round = 1, .suffix = {5000}};
    EXPECT_EQ(refused(stray).kind, ErrorKind::usage);
    std::atomic<bool> flag = false;
    engine::Request foreign = one_block;
    foreign.cancel = &flag;
    EXPECT_EQ(refused(foreign).kind, ErrorKind::usage);

    one_block.diffusion.adaptive_stop = false;
    one_block.diffusion.max_steps = 8;
    const Submitted first = submit(*scheduler, one_block), second = submit(*scheduler, one_block);
    const Error full = refused(one_block);
    EXPECT_EQ(full.kind, ErrorKind::overloaded);
    EXPECT_NE(full.message.find('2'), std::string::npos) << full.message;
    EXPECT_GE(scheduler->retry_after_seconds(), 1);
    EXPECT_EQ(first.client->reason(), FinishReason::stop);
    EXPECT_EQ(second.client->reason(), FinishReason::stop);
    const Submitted third = submit(*scheduler, one_block);
    scheduler->drain();
    EXPECT_EQ(refused(one_block).kind, ErrorKind::overloaded);
    EXPECT_EQ(third.client->reason(), FinishReason::stop) << "what is admitted is finished";
    EXPECT_TRUE(scheduler->wait_idle(long_enough));
    const engine::SchedulerStats stats = scheduler->stats();
    EXPECT_TRUE(stats.draining);
    EXPECT_EQ(stats.refused.at("memory"), 1u);
    EXPECT_EQ(stats.refused.at("overloaded"), 2u);
    EXPECT_EQ(stats.refused.at("usage"), 3u);
    EXPECT_EQ(stats.refused.at("context_length"), 1u);
    EXPECT_EQ(first.client->told.ids, alone(one_block).told.ids);
    EXPECT_FALSE(Scheduler::start(demo_checkpoint(), demo_load(), {.max_running = 0}).ok());
}

TEST(Scheduler, AFailureIsToldOnceAndTheOthersGoOn) {
    auto scheduler = start();
    engine::Request bad = demo_request();
    bad.pins = {{128, 1}};  // found out when the canvas is begun
    const Submitted failing = submit(*scheduler, bad), good = submit(*scheduler, demo_request());
    EXPECT_TRUE(failing.client->wait());
    ASSERT_TRUE(failing.client->failure);
    EXPECT_EQ(failing.client->failure->kind, ErrorKind::usage);
    EXPECT_EQ(good.client->reason(), FinishReason::stop);
    EXPECT_TRUE(scheduler->wait_idle(long_enough));
    EXPECT_EQ(scheduler->stats().failed.at("usage"), 1u);
}

TEST(Scheduler, StoppingTellsEverybody) {
    auto scheduler = start({.max_running = 2});
    engine::Request slow = demo_request("Write a long story about a cat.");
    slow.diffusion.adaptive_stop = false;
    slow.max_tokens = 3000;
    std::vector<Submitted> all(5);
    for (Submitted& one : all) one = submit(*scheduler, slow);
    scheduler.reset();
    for (const Submitted& one : all) EXPECT_EQ(one.client->reason(), FinishReason::cancelled);
}

TEST(Scheduler, AVerdictEndsTheReply) {
    auto scheduler = start();
    engine::Request r = demo_request("Count from 1 to 60.");
    r.max_tokens = 1000;
    r.stop_ids = {2047};
    r.diffusion.max_steps = 3;
    auto client = std::make_shared<Client>();
    client->verdict = engine::BlockVerdict::stop_string;
    ASSERT_TRUE(scheduler->submit(r, client).ok());
    EXPECT_EQ(client->reason(), FinishReason::stop_string);
    EXPECT_EQ(client->told.canvases.size(), 1u);
}

TEST(Scheduler, AttemptsDrawOtherNoise) {
    auto scheduler = start();
    engine::Request r = demo_request("Write a short story.");
    r.diffusion.max_steps = 2;
    r.max_tokens = 10;
    std::set<Ids> first_canvases;
    for (int attempt = 0; attempt < 3; ++attempt) {
        r.attempt = attempt;
        const Submitted one = submit(*scheduler, r);
        one.client->wait();
        ASSERT_FALSE(one.client->told.inputs.empty());
        first_canvases.insert(one.client->told.inputs[0]);
    }
    EXPECT_EQ(first_canvases.size(), 3u);
    r.attempt = -1;
    EXPECT_FALSE(scheduler->submit(r, std::make_shared<Client>()).ok());
}

}  // namespace
}  // namespace dgemma::testing
