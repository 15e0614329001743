#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/runner_task.h"

namespace dgemma::engine {

namespace {

double seconds_between(Runner::Clock::time_point from, Runner::Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

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
}

Runner::~Runner() = default;

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
        (*active)->reply->stop(reason);
        take_out_ended();
        return;
    }
    const std::unique_ptr<Task> task = std::move(*waiting);
    queue_.erase(waiting);
    EndEvent end{.reason = reason};
    end.stats.prompt_tokens = static_cast<int>(task->request.prompt.size());
    task->told.on_end(end);
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

bool Runner::tick() {
    while (!queue_.empty() && running_.size() < static_cast<std::size_t>(options_.max_running) &&
           start(*queue_.front())) {
        running_.push_back(std::move(queue_.front()));
        queue_.pop_front();
    }
    if (running_.empty()) return tidy();
    std::vector<Task*> encoding, denoising;
    for (const auto& task : running_)
        (task->reply->phase() == Reply::Phase::encode ? encoding : denoising).push_back(task.get());
    ++ticks_;
    encoded_last_ = denoising.empty() || (!encoding.empty() && !encoded_last_);
    encoded_last_ ? encode_pass(encoding) : denoise_pass(denoising);
    take_out_ended();
    return true;
}

bool Runner::start(Task& task) {
    task.raw_log = continue_raw_log(task);
    Start begin = conversations_.find(task.request.prompt);
    const std::uint64_t needed = request_bytes(loaded_, options_.rewind_tokens, task.setup);
    if (!make_room(begin, needed)) return false;
    Conversation& conversation = open(begin);
    conversation.busy = true;
    conversation.reserved = needed;
    conversations_.touch(conversation);
    task.conversation = &conversation;

    const Kept kept = conversation.session.begin(task.request.prompt);
    Reuse reuse = Reuse::none;
    if (kept.reused > 0) {
        reuse = task.raw_log                                         ? Reuse::raw_log
                : begin.how == Start::How::fork                      ? Reuse::forked
                : begin.how == Start::How::in_place && kept.lost > 0 ? Reuse::rewound
                                                                     : Reuse::prefix;
    }
    stats_.prompt_tokens += task.request.prompt.size();
    stats_.reused_tokens += static_cast<std::uint64_t>(kept.reused);
    ++stats_.reuse[std::string(name_of(reuse))];
    stats_.queue_seconds.add(seconds_between(task.admitted, Clock::now()));
    if (!begin.cause.empty()) ++stats_.reprefills[begin.cause];
    if (begin.cause == "window" || begin.cause == "memory" || begin.cause == "short") {
        log(fmt::format("request {}: {} of {} prompt tokens are encoded anew: {}", task.id,
                        static_cast<std::int64_t>(task.request.prompt.size()) - kept.reused,
                        task.request.prompt.size(), begin.reason));
    }
    if (task.raw_log) log(fmt::format("request {}: the tool turn goes on from its raw token log", task.id));
    task.started(conversation.number, static_cast<int>(kept.reused), reuse, begin.reason);
    task.reply = std::make_unique<Reply>(*loaded_.model, pool_, conversation.session, task.request,
                                         task.setup, task.told);
    task.reply->begin(kept, reuse, task.raw_log ? "raw_tool_turn" : "");
    return true;
}

bool Runner::continue_raw_log(Task& task) {
    const Continuation& next = task.request.continuation;
    if (next.round == 0 || task.request.exact) return false;
    // Decided anew each time: a conversation may be evicted while the request waits.
    if (task.rendered.empty()) task.rendered = task.request.prompt;
    task.request.prompt = task.rendered;
    task.setup = task.rendered_setup;
    const Round* held = conversations_.round(next.round);
    if (held == nullptr) return false;
    std::vector<std::int32_t> raw = held->raw_log;
    raw.insert(raw.end(), next.suffix.begin(), next.suffix.end());
    if (raw == task.rendered) return false;
    ReplySetup setup = task.setup;
    const auto budget = plan_budget(static_cast<int>(raw.size()), task.request.max_tokens,
                                    setup.canvas_length, task.request.shrink_canvas, loaded_.context);
    if (!budget) return false;
    setup.budget = budget.value();
    if (request_bytes(loaded_, options_.rewind_tokens, setup) > options_.memory_bytes) return false;
    task.request.prompt = std::move(raw);
    task.setup = std::move(setup);
    return true;
}

// Evicts idle conversations until `needed` bytes more may be used, or finds a cheaper way to start. -> false:
// running requests must end first.
bool Runner::make_room(Start& start, std::uint64_t needed) {
    for (;;) {
        const bool in_place = start.how == Start::How::in_place;
        const std::uint64_t own = in_place ? start.from->session.cache().bytes() : 0;
        const std::uint64_t others = conversations_.committed_bytes() - own;
        const std::uint64_t wanted = std::max(needed, own);
        if (others - conversations_.idle_bytes(start.from) + wanted <= options_.memory_bytes) break;
        if (start.how == Start::How::fresh) return false;
        // The conversation itself may be in the way: first go on from it instead of a copy, then do without.
        start.cause = "memory";
        start.reason = "there is no memory for the conversation that shares a prefix beside the request";
        if (start.how == Start::How::fork && !start.from->busy) {
            start.how = Start::How::in_place;
        } else {
            start = {.how = Start::How::fresh, .cause = start.cause, .reason = start.reason};
        }
    }
    for (;;) {
        const bool in_place = start.how == Start::How::in_place;
        const std::uint64_t own = in_place ? start.from->session.cache().bytes() : 0;
        if (conversations_.committed_bytes() - own + std::max(needed, own) <= options_.memory_bytes)
            return true;
        Conversation* oldest = conversations_.least_recent(start.from);
        if (oldest == nullptr) return true;
        evict(*oldest, "its memory was needed");
    }
}

// The conversation that a request starts on.
Conversation& Runner::open(Start& start) {
    if (start.how == Start::How::in_place) return *start.from;
    Conversation& made = conversations_.add(loaded_.new_cache(options_.rewind_tokens));
    if (start.how == Start::How::fork) {
        if (const Status copied = made.session.fork_from(start.from->session, start.shared); copied) {
            ++stats_.forks;
        } else {
            start = {.how = Start::How::fresh, .cause = "memory", .reason = copied.error().message};
        }
    }
    return made;
}

void Runner::fail(Task& task, const Error& error) {
    task.reply->abandon();
    task.failed(error);
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
void Runner::close(Task& task) {
    Conversation& c = *task.conversation;
    c.busy = false;
    c.reserved = 0;
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
    task.reply.reset();
    if (c.session.log().empty()) conversations_.erase(c);
    while (conversations_.size() > static_cast<std::size_t>(options_.max_conversations)) {
        Conversation* oldest = conversations_.least_recent(nullptr);
        if (oldest == nullptr) break;
        evict(*oldest, "there are too many");
    }
}

// Encodes what the next turn of an idle conversation will begin with.
bool Runner::tidy() {
    Conversation* c = conversations_.untidy();
    if (c == nullptr) return false;
    ++ticks_;
    model::KvCache& cache = c->session.cache();
    const model::Prompt piece = c->session.next_piece(cache.chunk());
    const auto tokens = static_cast<std::int64_t>(piece.ids.size());
    const std::uint64_t after = conversations_.committed_bytes() - cache.bytes() +
                                std::max(cache.bytes(), cache.bytes_for(cache.length() + tokens));
    bool worked = after <= options_.memory_bytes;
    if (worked) {
        ++stats_.encode_passes;
        worked = loaded_.model->encode(std::span(&piece, 1)).ok();
    }
    if (record_ != nullptr) {
        JsonLine line;
        line.add("t", ticks_).add("event", "tidy").add("conversation", c->number);
        line.add("tokens", worked ? tokens : 0);
        note(line);
    }
    if (worked) {
        stats_.encoded_tokens += static_cast<std::uint64_t>(tokens);
    } else {
        c->session.end();
        if (c->session.log().empty()) conversations_.erase(*c);
    }
    return true;
}

void Runner::evict(Conversation& conversation, std::string_view why) {
    ++stats_.evictions;
    log(fmt::format("conversation {} of {} tokens is evicted: {}", conversation.number,
                    conversation.session.cache().length(), why));
    if (record_ != nullptr) {
        JsonLine line;
        line.add("t", ticks_).add("event", "evict").add("conversation", conversation.number);
        note(line);
    }
    conversations_.erase(conversation);
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
    return stats_;
}

}  // namespace dgemma::engine
