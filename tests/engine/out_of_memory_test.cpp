// Memory that runs out in the middle of anything ends the request it happened to, and nothing else.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "engine/demo_model.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace {

// Allocations of this thread until one fails; negative: none does.
thread_local std::int64_t allocations_left = -1;

}  // namespace

// Of the whole test program. The other forms come here, if not those of a sanitizer, whose memory `delete`
// would then get from the form without an exception.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    try {
        return ::operator new(bytes);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace dgemma::testing {
namespace {

using engine::Runner;

class Client final : public engine::RequestSink {
  public:
    void on_step(const engine::StepEvent& event) override { told.on_step(event); }
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override { return told.on_block(event); }
    void on_end(const engine::EndEvent&) override { ++ends; }
    void on_failure(const Error& error) override {
        ++failures;
        kind = error.kind;
    }

    Told told;
    int ends = 0, failures = 0;
    ErrorKind kind{};
};

class Lines final : public engine::Record {
  public:
    void line(std::string_view json) override { last = json; }
    std::string last;
};

engine::Request brief(Ids prompt) {
    engine::Request r = demo_request();
    r.prompt = std::move(prompt);
    r.max_tokens = 8;
    r.canvas_length = 16;
    r.diffusion.max_steps = 2;
    return r;
}

struct Bench {
    // Many short passes: two threads would wait for each other most of the time.
    std::unique_ptr<engine::LoadedModel> model =
        engine::load_model(demo_checkpoint(), {.threads = 1, .prefill_chunk = 64}).value();
    std::unique_ptr<Runner> runner;
    Lines record;
    engine::RequestId last = 0;

    Bench() {
        engine::RunnerOptions options{.memory_bytes = std::uint64_t{1} << 30, .max_conversations = 3};
        options.log = [](std::string_view) {};
        runner = std::make_unique<Runner>(*model, std::move(options), &record);
    }
    std::shared_ptr<Client> submit(const engine::Request& request) {
        auto client = std::make_shared<Client>();
        runner->submit(++last, request, engine::check_request(demo_model(), request).value(), client,
                       Runner::Clock::now());
        return client;
    }
    // Until nothing is left to do. From now on, allocation number `failing` is the one that fails. -> whether
    // there were so many.
    bool settle(std::int64_t failing) {
        bool more = true;
        while (more) {
            allocations_left = failing;
            more = runner->tick();
            failing = std::exchange(allocations_left, -1);
        }
        return failing < 0;
    }
};

// Each of the first forty allocations of a run fails once, and of the thousands behind them one in a fortieth
// of the way.
TEST(OutOfMemoryHeavy, EndsTheRequestItHappensToAndNoOther) {
    const Ids first = filler(70, 71);
    const Told expected = alone(brief(first)).told;
    Bench run;
    std::int64_t failed = 0, runs = 0;
    bool reached = true;
    for (std::int64_t number = 0; reached; number += 1 + number / 40) {
        ++runs;
        engine::Request talks = brief(first);
        talks.next_prompt = [&](std::span<const std::int32_t> reply, const engine::EndEvent&) {
            Ids next = first;
            next.insert(next.end(), reply.begin(), reply.end());
            return next;
        };
        // Fewer conversations than there are prompts, so that some are begun anew each time.
        const auto a = run.submit(talks);
        const auto b = run.submit(brief(filler(10, 1000 + static_cast<int>(number))));
        reached = run.settle(number);
        ASSERT_EQ(a->ends + a->failures, 1) << number;
        ASSERT_EQ(b->ends + b->failures, 1) << number;
        for (const auto& client : {a, b}) {
            if (client->failures > 0) {
                ASSERT_EQ(client->kind, ErrorKind::io) << number;
            }
        }
        failed += a->failures + b->failures;
        if (a->ends > 0) {
            ASSERT_EQ(a->told.argmax, expected.argmax) << number;
        }
        ASSERT_TRUE(run.runner->idle());
        ASSERT_EQ(run.runner->stats().reserved_bytes, 0u) << number;
        ASSERT_LE(run.runner->stats().conversations, 3) << number;
        // Whatever it left behind can be gone on from.
        const auto again = run.submit(brief(first));
        ASSERT_FALSE(run.settle(std::int64_t{1} << 60));
        ASSERT_EQ(again->ends, 1) << number;
        ASSERT_EQ(again->told.argmax, expected.argmax) << number;
    }
    EXPECT_GT(runs, 100);
    EXPECT_GT(failed, runs / 2);
}

// The thread of a scheduler: a client whose events throw gets a failure, and its neighbour an answer.
TEST(OutOfMemory, WhatAClientThrowsIsItsOwnFailure) {
    struct Throws final : engine::RequestSink {
        void on_step(const engine::StepEvent&) override { throw std::bad_alloc(); }
        void on_end(const engine::EndEvent&) override { ++ends; }
        void on_failure(const Error&) override { ++failures; }
        std::atomic<int> ends = 0, failures = 0;
    };
    struct Listens final : engine::RequestSink {
        void on_step(const engine::StepEvent& event) override { told.on_step(event); }
        engine::BlockVerdict on_block(const engine::BlockEvent& event) override {
            return told.on_block(event);
        }
        void on_end(const engine::EndEvent&) override { ++ends; }
        void on_failure(const Error&) override {}
        Told told;
        std::atomic<int> ends = 0;
    };
    auto scheduler = engine::Scheduler::start(demo_checkpoint(), demo_load(), {}).value();
    const auto throws = std::make_shared<Throws>();
    const auto listens = std::make_shared<Listens>();
    ASSERT_TRUE(scheduler->submit(demo_request(), throws));
    ASSERT_TRUE(scheduler->submit(demo_request("What is 3 + 4?"), listens));
    ASSERT_TRUE(scheduler->wait_idle(std::chrono::minutes(5)));
    EXPECT_EQ(throws->ends, 0);
    EXPECT_EQ(throws->failures, 1);
    EXPECT_EQ(listens->ends, 1);
    EXPECT_EQ(listens->told.ids, alone(demo_request("What is 3 + 4?")).told.ids);
    EXPECT_EQ(scheduler->stats().failed.at("io"), 1u);
}

}  // namespace
}  // namespace dgemma::testing
