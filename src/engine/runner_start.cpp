// Which requests start, and what each of them begins with.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/runner.h"
#include "engine/runner_task.h"

namespace dgemma::engine {

namespace {

// Fewer tokens that two prompts share are encoded twice, in the same pass: sooner done than one after the
// other.
constexpr std::int64_t least_shared = 64;

}  // namespace

// In the order of arrival; but whoever waits for a prompt that is being encoded lets others pass, as long as
// there are a place and memory for it when that is done.
void Runner::start_waiting() {
    std::uint64_t kept_free = 0;
    std::size_t places = running_.size();
    for (std::size_t i = 0; i < queue_.size() && places < static_cast<std::size_t>(options_.max_running);
         ++places) {
        Task& task = *queue_[i];
        Begun begun = Begun::failed;
        try {
            begun = start(task, kept_free);
        } catch (...) {
            fail(task, thrown_error());
        }
        if (begun == Begun::no_room) break;
        if (begun == Begun::waits) {
            ++i;
            continue;
        }
        std::unique_ptr<Task> begins = std::move(queue_[i]);
        queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
        if (begun == Begun::runs) {
            running_.push_back(std::move(begins));
        } else {
            close(*begins);
            conversations_.forget_empty();
        }
    }
}

Runner::Begun Runner::start(Task& task, std::uint64_t& kept_free) {
    task.raw_log = continue_raw_log(task);
    Start begin = conversations_.find(task.request.prompt);
    const std::uint64_t needed = request_bytes(loaded_, options_.rewind_tokens, task.setup);
    if (const Task* ahead = ahead_of(task, begin)) {
        kept_free += needed;
        if (std::exchange(task.waits_for, ahead->id) != ahead->id) {
            log(fmt::format("request {} waits while request {} encodes what both prompts begin with", task.id,
                            ahead->id));
        }
        return Begun::waits;
    }
    if (!make_room(begin, needed, kept_free)) return Begun::no_room;
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
    if (task.waits_for != 0) ++stats_.shared_prefills;
    stats_.queue_seconds.add(std::chrono::duration<double>(Clock::now() - task.admitted).count());
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
    return Begun::runs;
}

// A request that is encoding what this one's prompt begins with too, will have it no later than this one
// would itself, and by enough to be worth a copy. Its output is what it would be anyway.
const Runner::Task* Runner::ahead_of(const Task& task, const Start& begin) const {
    for (const auto& other : running_) {
        const Session& session = other->session();
        const std::int64_t cached = session.cache().length();
        if (cached < begin.shared || session.pending().empty()) continue;
        const auto shared = static_cast<std::int64_t>(common_prefix(session.log(), task.request.prompt));
        // Who waits already waits for all of it.
        const std::int64_t least = task.waits_for == other->id ? 1 : least_shared;
        if (shared > cached && shared - begin.shared >= least) return other.get();
    }
    return nullptr;
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

// Evicts idle conversations until `needed` bytes more may be used, and `kept_free` beside them, or finds a
// cheaper way to start. -> false: running requests must end first.
bool Runner::make_room(Start& start, std::uint64_t needed, std::uint64_t kept_free) {
    for (;;) {
        const bool in_place = start.how == Start::How::in_place;
        const std::uint64_t own = in_place ? start.from->session.cache().bytes() : 0;
        const std::uint64_t others = conversations_.committed_bytes() - own;
        const std::uint64_t wanted = std::max(needed, own) + kept_free;
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
        const std::uint64_t wanted =
            conversations_.committed_bytes() - own + std::max(needed, own) + kept_free;
        if (wanted + pool_.unused_bytes() > options_.memory_bytes) pool_.drop_unused();
        if (wanted <= options_.memory_bytes) return true;
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

}  // namespace dgemma::engine
