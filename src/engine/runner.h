// Runs requests together, pass by pass, on the thread that calls it: the inside of a Scheduler, and of a
// replay. What it does depends on its options and on what is called between which passes, and on nothing
// else: no clock, no thread. A scheduler turns clocks and threads into such calls and records them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/conversations.h"
#include "engine/loaded_model.h"
#include "engine/logits_pool.h"
#include "engine/record.h"
#include "engine/reply.h"
#include "engine/scheduler.h"
#include "engine/scheduler_stats.h"

namespace dgemma::engine {

struct RunnerOptions {
    int max_running = 16;
    std::uint64_t memory_bytes = 0;
    int rewind_tokens = 0;
    int max_conversations = 64;
    std::function<void(std::string_view)> log;
    // Called when a request has ended, just before its sink is told.
    std::function<void(RequestId)> leaving;
};

// In a handler of what was thrown: what a request that it happened to is told. Takes no memory.
Error thrown_error() noexcept;

// Bytes that a request may come to need: keys and values of prompt and whole canvases, and logits.
std::uint64_t request_bytes(const LoadedModel& loaded, int rewind_tokens, const ReplySetup& setup);

class Runner {
  public:
    using Clock = std::chrono::steady_clock;

    // The model outlives the runner, and so does the record, which may be null.
    Runner(LoadedModel& loaded, RunnerOptions options, Record* record);
    ~Runner();
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

    // A request that check_request has found good, and that needs no more than memory_bytes.
    void submit(RequestId id, Request request, ReplySetup setup, std::shared_ptr<RequestSink> sink,
                Clock::time_point admitted);
    // The request ends. Unknown ids are ignored.
    void stop(RequestId id, FinishReason reason);
    // Stops every request whose deadline is not after `now`.
    void stop_late(Clock::time_point now);
    void stop_all(FinishReason reason);
    // Starts what can be started, then runs one pass of the model: an encode pass and a denoising pass by
    // turns, where both have something to do. -> false when there was nothing to do at all. Where memory runs
    // out, or anything else is thrown, those it happened to end with a failure, and the others go on.
    // tidy_too: without requests, the pass may be for what the next turn of an idle conversation begins with.
    bool tick(bool tidy_too = true);
    // Every request ends with this failure.
    void fail_all(const Error& error) noexcept;

    [[nodiscard]] std::uint64_t ticks() const { return ticks_; }
    [[nodiscard]] bool idle() const { return queue_.empty() && running_.empty(); }
    [[nodiscard]] const SchedulerStats& stats();

  private:
    struct Task;
    class TaskSink;

    void start_waiting();
    enum class Begun : std::uint8_t { runs, waits, no_room, failed };
    // Those that wait add to `kept_free` what they will need.
    Begun start(Task& task, std::uint64_t& kept_free);
    [[nodiscard]] const Task* ahead_of(const Task& task, const Start& begin) const;
    // The raw token log in the place of the rendered prompt, where Continuation allows it. -> whether.
    bool continue_raw_log(Task& task);
    bool make_room(Start& start, std::uint64_t needed, std::uint64_t kept_free);
    Conversation& open(Start& start);
    void run_pass(std::span<Task* const> tasks);
    void encode_pass(std::span<Task* const> tasks);
    void denoise_pass(std::span<Task* const> tasks);
    void take_out_ended();
    void close(Task& task) noexcept;
    void prepare_next_turn(Task& task);
    void fail(Task& task, const Error& error) noexcept;
    bool tidy();
    std::int64_t encode_next_turn(Conversation& conversation);
    void keep_within_memory();
    void evict(Conversation& conversation, std::string_view why) noexcept;
    void note(JsonLine& line);
    void log(std::string_view sentence);

    LoadedModel& loaded_;
    RunnerOptions options_;
    Record* record_;
    model::KvCache kind_;  // of every conversation's cache; empty
    LogitsPool pool_;
    Conversations conversations_;
    std::deque<std::unique_ptr<Task>> queue_;
    std::vector<std::unique_ptr<Task>> running_;  // in the order they started
    std::uint64_t ticks_ = 0;
    std::uint64_t encode_turn_ = 0;  // whose piece comes first
    bool encoded_last_ = false;
    SchedulerStats stats_;
};

}  // namespace dgemma::engine
