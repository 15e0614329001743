#include "engine/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/host_memory.h"
#include "engine/record.h"
#include "engine/reply.h"
#include "engine/runner.h"

namespace dgemma::engine {

namespace {

// A client that answers at once must not find the model at work for a later one. Who comes in this time
// encodes the beginning of its next turn itself, so nothing is lost.
constexpr std::chrono::milliseconds rest(20);
constexpr int most_running = 1024, most_queued = 1 << 20, most_rewind = 1 << 20, most_prompt = 1 << 24;

Status check(const SchedulerOptions& options) {
    if (options.max_running < 1 || options.max_running > most_running) {
        return Error{ErrorKind::usage, fmt::format("a scheduler runs 1 to {} requests at once, not {}",
                                                   most_running, options.max_running)};
    }
    if (options.max_queue < 0 || options.max_queue > most_queued) {
        return Error{ErrorKind::usage,
                     fmt::format("a queue holds 0 to {} requests, not {}", most_queued, options.max_queue)};
    }
    if (options.rewind_tokens < 0 || options.rewind_tokens > most_rewind) {
        return Error{ErrorKind::usage,
                     fmt::format("conversations can be taken back by 0 to {} tokens, not {}", most_rewind,
                                 options.rewind_tokens)};
    }
    if (options.least_prompt < 1 || options.least_prompt > most_prompt) {
        return Error{ErrorKind::usage, fmt::format("the shortest prompt has 1 to {} tokens, not {}",
                                                   most_prompt, options.least_prompt)};
    }
    if (options.max_conversations < 0) {
        return Error{ErrorKind::usage, "a scheduler holds 0 or more conversations"};
    }
    return {};
}

std::uint64_t default_memory(const LoadedModel& loaded, int rewind_tokens) {
    ReplySetup longest;
    longest.canvas_length = loaded.config.canvas_length;
    longest.budget.positions = loaded.context;
    return std::max(host_memory().all.value_or(0) / 4, request_bytes(loaded, rewind_tokens, longest));
}

// Where the shortest request finds no room, none will: better said at the start than to each client.
Status check_room(const LoadedModel& loaded, const SchedulerOptions& options) {
    const int canvas = loaded.config.canvas_length;
    ReplySetup shortest;
    shortest.canvas_length = canvas;
    shortest.budget = {.max_tokens = 1, .positions = options.least_prompt + canvas};
    if (shortest.budget.positions > loaded.context) {
        return Error{
            ErrorKind::usage,
            fmt::format("A context of {} tokens has no room for any request: the shortest prompt takes up {} "
                        "and a canvas {}; let --ctx be at least {}.",
                        loaded.context, options.least_prompt, canvas, shortest.budget.positions)};
    }
    const auto mib = [](std::uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; };
    const std::uint64_t needed = request_bytes(loaded, options.rewind_tokens, shortest);
    if (needed > options.memory_bytes) {
        return Error{
            ErrorKind::usage,
            fmt::format("The {} bytes that conversations may keep have no room for any request: the shortest "
                        "prompt and one canvas, {} tokens, need {}; let --cache-memory be at least {}.",
                        options.memory_bytes, shortest.budget.positions, needed, mib(needed))};
    }
    ReplySetup ordinary = shortest;
    DGEMMA_TRY(ordinary.budget, plan_budget(options.least_prompt, 0, canvas, false, loaded.context));
    const std::uint64_t wanted = request_bytes(loaded, options.rewind_tokens, ordinary);
    if (wanted > options.memory_bytes && options.warn) {
        options.warn(
            fmt::format("note: a request that does not limit its tokens may answer with {}, which needs {} "
                        "bytes; conversations may keep {}, so it is refused unless --cache-memory is at "
                        "least {}",
                        ordinary.budget.max_tokens, wanted, options.memory_bytes, mib(wanted)));
    }
    return {};
}

std::string first_line(const SchedulerOptions& options, const LoadedModel& loaded, const LoadOptions& load) {
    JsonLine line;
    line.add("record", kRecordVersion)
        .add("version", options.version)
        .add("model", options.model_name)
        .add("vocabulary", loaded.config.text.vocab_size)
        .add_json("load", load_json(load))
        .add("max_running", options.max_running)
        .add("memory_bytes", options.memory_bytes)
        .add("rewind_tokens", options.rewind_tokens)
        .add("max_conversations", options.max_conversations);
    return line.text();
}

}  // namespace

// What callers and the owner thread share, under one mutex, and what the owner thread alone uses.
struct Scheduler::Shared {
    struct Arrival {
        RequestId id;
        Request request;
        ReplySetup setup;
        std::shared_ptr<RequestSink> sink;
        Runner::Clock::time_point when;
    };

    std::unique_ptr<LoadedModel> loaded;
    SchedulerOptions options;
    std::unique_ptr<RecordFile> record;

    mutable std::mutex mutex;
    std::condition_variable wake;           // the owner has something to do
    mutable std::condition_variable quiet;  // nothing is queued or running
    std::vector<Arrival> arrived;
    std::vector<RequestId> cancelled;
    RequestId last_id = 0;
    int admitted = 0;    // requests that take up a place: not yet told their end
    int unfinished = 0;  // requests that the owner has still to do with
    bool draining = false, stopping = false;
    SchedulerStats published;
    std::map<std::string, std::uint64_t> refused;

    void own();  // the owner thread
    void hand_over(Runner& runner, Arrival& arrival);
    Error refuse(Error error) {
        const std::lock_guard lock(mutex);
        ++refused[std::string(name_of(error.kind))];
        return error;
    }
};

void Scheduler::Shared::hand_over(Runner& runner, Arrival& arrival) {
    try {
        runner.submit(arrival.id, std::move(arrival.request), std::move(arrival.setup), arrival.sink,
                      arrival.when);
    } catch (...) {
        {
            const std::lock_guard lock(mutex);
            --admitted;
        }
        try {
            arrival.sink->on_failure(thrown_error());
        } catch (...) {  // nobody is left to be told
        }
    }
}

// One turn: what has arrived is handed to the runner, then the runner does one pass.
void Scheduler::Shared::own() {
    Runner runner(*loaded,
                  {.max_running = options.max_running,
                   .memory_bytes = options.memory_bytes,
                   .rewind_tokens = options.rewind_tokens,
                   .max_conversations = options.max_conversations,
                   .log = options.log,
                   .leaving =
                       [this](RequestId) {
                           const std::lock_guard lock(mutex);
                           --admitted;
                       }},
                  record.get());
    int known = 0;  // requests the runner has been given and has not ended
    bool told_of_record = false;
    bool rested = false;  // nobody has asked for a while
    for (;;) {
        std::vector<Arrival> arrivals;
        std::vector<RequestId> cancels;
        bool stop = false;
        {
            const std::lock_guard lock(mutex);
            arrivals.swap(arrived);
            cancels.swap(cancelled);
            stop = stopping;
        }
        known += static_cast<int>(arrivals.size());
        if (!arrivals.empty()) rested = false;
        for (Arrival& a : arrivals) hand_over(runner, a);
        bool worked = true;
        try {
            for (const RequestId id : cancels) runner.stop(id, FinishReason::cancelled);
            runner.stop_late(Runner::Clock::now());
            if (stop) runner.stop_all(FinishReason::cancelled);
            worked = !stop && runner.tick(rested);
        } catch (...) {
            // The runner keeps what concerns one request, or one pass, to those. This is about all of them.
            runner.fail_all(thrown_error());
        }

        if (record != nullptr && record->broken() && !std::exchange(told_of_record, true) && options.warn) {
            options.warn(
                "the record cannot be written any more and ends here; requests are answered as before");
        }
        const SchedulerStats& stats = runner.stats();
        std::unique_lock lock(mutex);
        unfinished -= known - (stats.queued + stats.running);
        known = stats.queued + stats.running;
        try {
            published = stats;
            published.recording = record != nullptr && !record->broken();
        } catch (const std::bad_alloc&) {  // those of an earlier pass must do
        }
        if (unfinished == 0) quiet.notify_all();
        if (stop && arrived.empty()) return;
        if (worked) continue;
        const auto asked = [&] { return !arrived.empty() || !cancelled.empty() || stopping; };
        if (rested) {
            wake.wait(lock, asked);
        } else {
            rested = !wake.wait_for(lock, rest, asked);
        }
    }
}

Scheduler::Scheduler(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}

Result<std::unique_ptr<Scheduler>> Scheduler::start(const files::Checkpoint& checkpoint,
                                                    const LoadOptions& load,
                                                    const SchedulerOptions& options) {
    DGEMMA_CHECK(check(options));
    auto shared = std::make_unique<Shared>();
    shared->options = options;
    DGEMMA_TRY(shared->loaded, load_model(checkpoint, load));
    if (options.memory_bytes == 0)
        shared->options.memory_bytes = default_memory(*shared->loaded, options.rewind_tokens);
    DGEMMA_CHECK(check_room(*shared->loaded, shared->options));
    if (!options.record.empty()) {
        DGEMMA_TRY(shared->record, RecordFile::open(options.record));
        shared->record->line(first_line(shared->options, *shared->loaded, load));
    }
    std::unique_ptr<Scheduler> made(new Scheduler(std::move(shared)));
    try {
        made->owner_ = std::thread([owned = made->shared_.get()] { owned->own(); });
    } catch (const std::system_error&) {
        return Error{ErrorKind::io,
                     "the system does not make a thread to run the model on: end other programs"};
    }
    return made;
}

Scheduler::~Scheduler() {
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->stopping = shared_->draining = true;
    }
    shared_->wake.notify_one();
    if (owner_.joinable()) owner_.join();
}

const model::Config& Scheduler::config() const { return shared_->loaded->config; }
const model::GenerationConfig& Scheduler::generation_config() const { return shared_->loaded->generation; }
diffusion::Options Scheduler::default_options() const {
    return engine::default_options(shared_->loaded->generation);
}
int Scheduler::context_limit() const { return shared_->loaded->context; }

Result<RequestId> Scheduler::submit(Request request, std::shared_ptr<RequestSink> sink) {
    Shared& s = *shared_;
    if (sink == nullptr || request.noise != nullptr || request.cancel != nullptr) {
        return s.refuse({ErrorKind::usage,
                         "a scheduled request has a sink, no noise of its own, and is cancelled by its id"});
    }
    Result<ReplySetup> setup = check_request(*s.loaded, request);
    if (!setup) return s.refuse(std::move(setup).error());
    const int vocabulary = s.loaded->config.text.vocab_size;
    for (const std::int32_t id : request.continuation.suffix) {
        if (id < 0 || id >= vocabulary) {
            return s.refuse(
                {ErrorKind::usage,
                 fmt::format("token id {} is outside the model's vocabulary of {}", id, vocabulary)});
        }
    }
    const std::uint64_t needed = request_bytes(*s.loaded, s.options.rewind_tokens, setup.value());
    if (needed > s.options.memory_bytes) {
        return s.refuse(
            {ErrorKind::memory,
             fmt::format("prompt and canvases take up {} positions, which need {} bytes of memory, "
                         "and all requests together have {}: shorten the prompt or ask for fewer "
                         "tokens",
                         setup.value().budget.positions, needed, s.options.memory_bytes)});
    }
    RequestId id = 0;
    {
        const std::lock_guard lock(s.mutex);
        if (s.draining || s.admitted >= s.options.max_running + s.options.max_queue) {
            ++s.refused["overloaded"];
            return Error{ErrorKind::overloaded,
                         s.draining ? std::string("the server is shutting down: ask another one")
                                    : fmt::format("{} requests run or wait, and no more may: try again later",
                                                  s.admitted)};
        }
        ++s.admitted;
        ++s.unfinished;
        id = ++s.last_id;
        s.arrived.push_back(
            {id, std::move(request), std::move(setup).value(), std::move(sink), Runner::Clock::now()});
    }
    s.wake.notify_one();
    return id;
}

void Scheduler::cancel(RequestId id) {
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->cancelled.push_back(id);
    }
    shared_->wake.notify_one();
}

int Scheduler::retry_after_seconds() const {
    const std::lock_guard lock(shared_->mutex);
    const Histogram& taken = shared_->published.request_seconds;
    // A request takes what it took the others, waiting included; in that time a queue moves on by its length.
    const double mean = taken.count > 0 ? taken.sum / static_cast<double>(taken.count) : 1;
    return static_cast<int>(std::clamp(mean, 1.0, 600.0));
}

SchedulerStats Scheduler::stats() const {
    const std::lock_guard lock(shared_->mutex);
    SchedulerStats stats = shared_->published;
    stats.queued += static_cast<int>(shared_->arrived.size());
    stats.refused = shared_->refused;
    stats.memory_bytes = shared_->options.memory_bytes;
    stats.draining = shared_->draining;
    return stats;
}

void Scheduler::drain() {
    const std::lock_guard lock(shared_->mutex);
    shared_->draining = true;
}

bool Scheduler::wait_idle(std::chrono::milliseconds timeout) const {
    std::unique_lock lock(shared_->mutex);
    return shared_->quiet.wait_for(lock, timeout, [&] { return shared_->unfinished == 0; });
}

}  // namespace dgemma::engine
