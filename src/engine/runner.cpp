#include "engine/runner.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "engine/runner_task.h"

namespace dgemma::engine {

namespace {

std::uint64_t logits_bytes(const LoadedModel& loaded, const ReplySetup& setup) {
    return static_cast<std::uint64_t>(setup.canvas_length) *
           static_cast<std::uint64_t>(loaded.config.text.vocab_size) * sizeof(float);
}

}  // namespace

std::uint64_t request_bytes(const LoadedModel& loaded, int rewind_tokens, const ReplySetup& setup) {
    return loaded.new_cache(rewind_tokens).bytes_for(setup.budget.positions) + logits_bytes(loaded, setup);
}

Runner::Runner(LoadedModel& loaded, RunnerOptions options, Record* record)
    : loaded_(loaded),
      options_(std::move(options)),
      record_(record),
      kind_(loaded.new_cache(options_.rewind_tokens)),
      pool_(*loaded.backend, loaded.config.text.vocab_size, 2) {
    stats_.memory_bytes = options_.memory_bytes;
    running_.reserve(static_cast<std::size_t>(options_.max_running));
}

Runner::~Runner() = default;

Error thrown_error() noexcept {
    // Short enough to take no memory of their own.
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return {ErrorKind::io, "out of memory"};
    } catch (...) {
        return {ErrorKind::invalid, "internal error"};
    }
}

void Runner::submit(RequestId id, Request request, ReplySetup setup, std::shared_ptr<RequestSink> sink,
                    Clock::time_point admitted) {
    ++stats_.submitted;
    if (record_ != nullptr) {
        JsonLine line;
        line.add("t", ticks_).add("op", "submit").add("id", id);
        add_request(line, request);
        note(line);
    }
    queue_.push_back(
        std::make_unique<Task>(*this, id, std::move(request), std::move(setup), std::move(sink), admitted));
}

void Runner::stop(RequestId id, FinishReason reason) {
    const auto is_it = [&](const auto& task) { return task->id == id; };
    const auto waiting = std::find_if(queue_.begin(), queue_.end(), is_it);
    const auto active = std::find_if(running_.begin(), running_.end(), is_it);
    if (waiting == queue_.end() && active == running_.end()) return;
    if (record_ != nullptr) {
        JsonLine line;
        line.add("t", ticks_).add("op", "stop").add("id", id).add("reason", name_of(reason));
        note(line);
    }
    if (active != running_.end()) {
        try {
            (*active)->reply->stop(reason);
        } catch (...) {
            fail(**active, thrown_error());
        }
        take_out_ended();
        return;
    }
    const std::unique_ptr<Task> task = std::move(*waiting);
    queue_.erase(waiting);
    try {
        EndEvent end{.reason = reason};
        end.stats.prompt_tokens = static_cast<int>(task->request.prompt.size());
        task->told.on_end(end);
    } catch (...) {
        fail(*task, thrown_error());
    }
}

void Runner::stop_late(Clock::time_point now) {
    std::vector<RequestId> late;
    const auto look = [&](const std::unique_ptr<Task>& task) {
        if (task->deadline && *task->deadline <= now) late.push_back(task->id);
    };
    std::for_each(queue_.begin(), queue_.end(), look);
    std::for_each(running_.begin(), running_.end(), look);
    for (const RequestId id : late) stop(id, FinishReason::deadline);
}

void Runner::stop_all(FinishReason reason) {
    while (!queue_.empty()) stop(queue_.front()->id, reason);
    while (!running_.empty()) stop(running_.front()->id, reason);
}

bool Runner::tick(bool tidy_too) {
    start_waiting();
    if (running_.empty()) return tidy_too && tidy();
    std::vector<Task*> encoding, denoising;
    try {
        for (const auto& task : running_)
            (task->reply->phase() == Reply::Phase::encode ? encoding : denoising).push_back(task.get());
    } catch (...) {
        const Error error = thrown_error();
        for (const auto& task : running_) fail(*task, error);
        encoding.clear();
        denoising.clear();
    }
    ++ticks_;
    encoded_last_ = denoising.empty() || (!encoding.empty() && !encoded_last_);
    run_pass(encoded_last_ ? encoding : denoising);
    take_out_ended();
    keep_within_memory();
    return true;
}

void Runner::run_pass(std::span<Task* const> tasks) {
    if (tasks.empty()) return;
    try {
        encoded_last_ ? encode_pass(tasks) : denoise_pass(tasks);
    } catch (...) {
        // A denoising pass may have left logits half written, so nobody in it can go on.
        const Error error = thrown_error();
        for (Task* task : tasks) fail(*task, error);
    }
}

// Also of a request that has not quite started.
void Runner::fail(Task& task, const Error& error) noexcept {
    if (task.over) return;
    if (task.reply) {
        task.reply->abandon();
    } else if (task.conversation != nullptr) {
        task.conversation->session.end();
    }
    task.failed(error);
}

void Runner::fail_all(const Error& error) noexcept {
    for (const auto& task : running_) fail(*task, error);
    for (const auto& task : queue_) fail(*task, error);
    queue_.clear();
    take_out_ended();
}

void Runner::take_out_ended() {
    for (std::size_t i = 0; i < running_.size();) {
        if (running_[i]->reply->phase() != Reply::Phase::ended) {
            ++i;
            continue;
        }
        const std::unique_ptr<Task> task = std::move(running_[i]);
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        close(*task);
    }
}

// The conversation of a request that has ended becomes idle.
void Runner::close(Task& task) noexcept {
    if (task.conversation == nullptr) return;  // it never started
    Conversation& c = *task.conversation;
    c.busy = false;
    c.reserved = 0;
    try {
        prepare_next_turn(task);
    } catch (...) {
        c.session.end();  // the next turn takes longer, that is all
    }
    task.reply.reset();
    if (c.session.log().empty()) conversations_.erase(c);
    while (conversations_.size() > static_cast<std::size_t>(options_.max_conversations)) {
        Conversation* oldest = conversations_.least_recent(nullptr);
        if (oldest == nullptr) break;
        evict(*oldest, "there are too many");
    }
}

void Runner::prepare_next_turn(Task& task) {
    Conversation& c = *task.conversation;
    if (task.ended) {
        Round round{.request = task.id, .raw_log = task.request.prompt};
        round.raw_log.insert(round.raw_log.end(), task.reply->delivered().begin(),
                             task.reply->delivered().end());
        if (task.ended->stop_id) round.raw_log.push_back(*task.ended->stop_id);
        Conversations::add_round(c, std::move(round));
    }
    conversations_.touch(c);
    const std::vector<std::int32_t> next = task.next_prompt();
    if (!next.empty()) {
        const Kept kept = c.session.begin(next);
        if (kept.reused < kept.shared)
            log(fmt::format("conversation {} is encoded anew for its next turn: {}", c.number, kept.reason));
        c.session.cache().trim();
    }
}

// Encodes what the next turn of an idle conversation will begin with.
bool Runner::tidy() {
    Conversation* c = conversations_.untidy();
    if (c == nullptr) return false;
    ++ticks_;
    std::int64_t tokens = 0;
    try {
        tokens = encode_next_turn(*c);
    } catch (...) {  // nobody waits for it
    }
    if (tokens == 0) {
        c->session.end();
        if (c->session.log().empty()) conversations_.erase(*c);
    }
    return true;
}

// One piece of it. -> how many tokens; 0 where they cannot be encoded.
std::int64_t Runner::encode_next_turn(Conversation& conversation) {
    model::KvCache& cache = conversation.session.cache();
    const model::Prompt piece = conversation.session.next_piece(cache.chunk());
    auto tokens = static_cast<std::int64_t>(piece.ids.size());
    const std::uint64_t after = conversations_.committed_bytes() - cache.bytes() +
                                std::max(cache.bytes(), cache.bytes_for(cache.length() + tokens));
    bool worked = after <= options_.memory_bytes;
    if (worked) {
        if (after + pool_.unused_bytes() > options_.memory_bytes) pool_.drop_unused();
        ++stats_.encode_passes;
        worked = loaded_.model->encode(std::span(&piece, 1)).ok();
    }
    if (!worked) tokens = 0;
    stats_.encoded_tokens += static_cast<std::uint64_t>(tokens);
    if (record_ != nullptr) {
        JsonLine line;
        line.add("t", ticks_).add("event", "tidy").add("conversation", conversation.number);
        line.add("tokens", tokens);
        note(line);
    }
    return tokens;
}

void Runner::evict(Conversation& conversation, std::string_view why) noexcept {
    ++stats_.evictions;
    try {
        log(fmt::format("conversation {} of {} tokens is evicted: {}", conversation.number,
                        conversation.session.cache().length(), why));
        if (record_ != nullptr) {
            JsonLine line;
            line.add("t", ticks_).add("event", "evict").add("conversation", conversation.number);
            note(line);
        }
    } catch (...) {  // untold, then
    }
    conversations_.erase(conversation);
}

// Logits that nobody uses take memory too, and are the first to go.
void Runner::keep_within_memory() {
    if (conversations_.committed_bytes() + pool_.unused_bytes() > options_.memory_bytes) pool_.drop_unused();
}

void Runner::note(JsonLine& line) {
    if (record_ != nullptr) record_->line(line.text());
}

void Runner::log(std::string_view sentence) {
    if (options_.log) options_.log(sentence);
}

const SchedulerStats& Runner::stats() {
    stats_.queued = static_cast<int>(queue_.size());
    stats_.running = static_cast<int>(running_.size());
    stats_.conversations = static_cast<int>(conversations_.size());
    stats_.cache_bytes = conversations_.cache_bytes();
    stats_.reserved_bytes = conversations_.reserved_bytes();
    stats_.unused_logits_bytes = pool_.unused_bytes();
    return stats_;
}

}  // namespace dgemma::engine
