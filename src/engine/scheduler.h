// Many requests on one model. One thread owns the model and runs passes; whatever is ready for a pass goes
// into it together: canvases of all requests that denoise, pieces of all prompts and blocks that are to be
// encoded. What a request answers depends on the request alone: not on its neighbours, not on the order of
// arrival, and not on what a conversation still had in its cache, since a reused prefix is bit for bit what
// encoding it anew would give. The one exception has a name and can be turned off: see Continuation.
//
// Life of a request:
//   submit     checks it, on the caller's thread, and puts it into the queue
//   on_start   it runs: a conversation was found (the longest common prefix of token ids) or begun
//   on_prefill, on_step, on_block ... as with Generator::generate
//   on_end or on_failure, exactly one of them, exactly once, whatever happens; nothing after it
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.h"
#include "engine/events.h"
#include "engine/generator.h"
#include "engine/scheduler_stats.h"

namespace dgemma::engine {

// Of one scheduler, counted from 1; never used again.
using RequestId = std::uint64_t;

struct SchedulerOptions {
    int max_queue = 256;   // requests that wait; one more is refused with ErrorKind::overloaded
    int max_running = 16;  // requests that run at once: canvases of one pass
    // Keys and values of all conversations, idle ones included, plus logits of the running requests.
    // 0: a quarter of this machine's memory, and at least what one request of the longest context needs.
    std::uint64_t memory_bytes = 0;
    int least_prompt = 1;        // tokens of the shortest prompt that will come
    int max_conversations = 64;  // that are held at most, however little memory they take
    // How far back a conversation can be rewound once it is longer than the sliding window, in tokens; what
    // the window lost further back must be encoded anew. Costs that many tokens of the sliding layers' keys
    // and values in each conversation that is long enough.
    int rewind_tokens = 1024;
    std::filesystem::path record;  // every operation and event goes there as JSON lines; empty: nowhere
    std::string model_name;        // of the record's first line: what `dgemma replay` loads without --model
    std::string version;           // of the program, for the same line
    // One sentence for each conversation that is evicted and each prompt that must be encoded anew although
    // a conversation shares it, with the reason. Called on the owner thread; must not block.
    std::function<void(std::string_view)> log;
    // One sentence where the scheduler goes on without something it was asked for: the record cannot be
    // written any more, or memory_bytes has no room for a reply without a limit of its own (told by start).
    // As log otherwise.
    std::function<void(std::string_view)> warn;
};

struct StartEvent {
    RequestId id = 0;
    int prompt_tokens = 0;  // of the prompt in force: longer or shorter than the request's under Continuation
    int reused_tokens = 0;
    Reuse reuse = Reuse::none;
    bool raw_log = false;  // the prompt in force is a raw token log and Continuation::suffix
    std::string reason;    // why nothing or not more was reused; empty where all of a conversation was
    double queued_ms = 0;  // time in the queue
};

// Told on the owner thread: must return soon and never call back into the scheduler except cancel(). An
// event's spans are valid during the call only. Events may come before submit has returned.
class RequestSink : public Sink {
  public:
    virtual void on_start(const StartEvent&) {}
    // In place of on_end. Kinds: non_finite, io (memory), invalid. Blocks delivered before stay delivered.
    virtual void on_failure(const Error& error) = 0;
};

class Scheduler {
  public:
    // Loads the model and starts the owner thread. The checkpoint must outlive the scheduler. Errors: those
    // of load_model; usage (a nonsense option; a context or memory_bytes that has no room for the shortest
    // prompt and one canvas, with the numbers); io (the record cannot be written, no thread).
    static Result<std::unique_ptr<Scheduler>> start(const files::Checkpoint& checkpoint,
                                                    const LoadOptions& load, const SchedulerOptions& options);
    // Cancels what runs and waits, told to every sink; then stops the thread.
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // --- everything below is thread-safe

    [[nodiscard]] const model::Config& config() const;
    [[nodiscard]] const model::GenerationConfig& generation_config() const;
    [[nodiscard]] diffusion::Options default_options() const;
    [[nodiscard]] int context_limit() const;

    // Admits a request. The sink is kept until on_end or on_failure has returned; the request's functions are
    // called on the owner thread. Errors, in which case the sink is told nothing:
    //   usage           as Generator::generate; also a request with `noise` or `cancel` of its own
    //   context_length  prompt and reply do not fit the context, with the numbers
    //   memory          the request alone would need more than memory_bytes, with the numbers
    //   overloaded      the queue is full, or the scheduler drains: try again after retry_after_seconds()
    Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink);

    // The request ends with FinishReason::cancelled before its next pass; its conversation stays valid. An
    // unknown or ended id is ignored.
    void cancel(RequestId id);

    // A guess, in whole seconds and at least 1, at when a place in the queue will be free: for Retry-After.
    [[nodiscard]] int retry_after_seconds() const;

    [[nodiscard]] SchedulerStats stats() const;

    // From now on nothing is admitted; what is admitted already is finished. Returns at once.
    void drain();
    // Waits until nothing is queued or running. -> false when `timeout` passed before.
    bool wait_idle(std::chrono::milliseconds timeout) const;

  private:
    struct Shared;
    explicit Scheduler(std::unique_ptr<Shared> shared);
    std::unique_ptr<Shared> shared_;
    std::thread owner_;
};

}  // namespace dgemma::engine
