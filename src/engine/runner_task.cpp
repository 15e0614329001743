#include "engine/runner_task.h"

#include <utility>

namespace dgemma::engine {

namespace {

double seconds_since(Runner::Clock::time_point start) {
    return std::chrono::duration<double>(Runner::Clock::now() - start).count();
}

// 1 and 0 as text.
std::string bits(std::span<const std::uint8_t> flags) {
    std::string out(flags.size(), '0');
    for (std::size_t i = 0; i < flags.size(); ++i) {
        if (flags[i] != 0) out[i] = '1';
    }
    return out;
}

void add_stop_id(JsonLine& line, std::optional<std::int32_t> id) {
    if (id) {
        line.add("stop_id", *id);
    } else {
        line.add_json("stop_id", "null");
    }
}

}  // namespace

std::string_view name_of(BlockVerdict verdict) {
    switch (verdict) {
        case BlockVerdict::go_on:
            return "go_on";
        case BlockVerdict::stop_string:
            return "stop_string";
        case BlockVerdict::cancel:
            return "cancel";
    }
    return "?";
}

void Runner::TaskSink::on_prefill(const PrefillEvent& event) { task_.sink->on_prefill(event); }

void Runner::TaskSink::on_step(const StepEvent& event) {
    if (runner_.record_ != nullptr) {
        JsonLine line;
        line.add("t", runner_.ticks_)
            .add("event", "step")
            .add("id", task_.id)
            .add("block", event.block)
            .add("attempt", event.attempt)
            .add("step", event.step)
            .add("temperature", event.temperature)
            .add("mean_entropy", event.mean_entropy)
            .add("accepted", event.accepted)
            .add("stable", event.stable)
            .add("confident", event.confident)
            .add("input", event.input)
            .add("argmax", event.argmax)
            .add("accept", bits(event.accept));
        runner_.note(line);
    }
    task_.sink->on_step(event);
}

BlockVerdict Runner::TaskSink::on_block(const BlockEvent& event) {
    SchedulerStats& stats = runner_.stats_;
    if (event.block == 0) stats.first_block_seconds.add(seconds_since(task_.admitted));
    ++stats.blocks;
    ++stats.block_stops[event.stop_rule];
    for (const std::string& guard : event.guards) ++stats.guards[guard];
    stats.output_tokens += event.ids.size();
    const BlockVerdict verdict = task_.sink->on_block(event);
    if (runner_.record_ != nullptr) {
        JsonLine line;
        line.add("t", runner_.ticks_)
            .add("event", "block")
            .add("id", task_.id)
            .add("block", event.block)
            .add("ids", event.ids)
            .add("canvas", event.canvas);
        add_stop_id(line, event.stop_id);
        line.add("steps", event.steps)
            .add("attempts", event.attempts)
            .add("trimmed", event.trimmed)
            .add("stop_rule", event.stop_rule)
            .add("guards", std::span<const std::string>(event.guards))
            .add("verdict", name_of(verdict));
        runner_.note(line);
    }
    return verdict;
}

void Runner::TaskSink::on_end(const EndEvent& event) {
    ++runner_.stats_.ended[std::string(name_of(event.reason))];
    runner_.stats_.request_seconds.add(seconds_since(task_.admitted));
    if (runner_.record_ != nullptr) {
        JsonLine line;
        line.add("t", runner_.ticks_).add("event", "end").add("id", task_.id);
        line.add("reason", name_of(event.reason));
        add_stop_id(line, event.stop_id);
        line.add("prompt_tokens", event.stats.prompt_tokens)
            .add("reused_tokens", event.stats.reused_tokens)
            .add("output_tokens", event.stats.output_tokens)
            .add("steps", event.stats.steps);
        runner_.note(line);
    }
    task_.ended = event;
    task_.leave();
    task_.sink->on_end(event);
    task_.over = true;
}

Runner::Task::Task(Runner& owner, RequestId number, Request asked, ReplySetup prepared,
                   std::shared_ptr<RequestSink> listener, Clock::time_point when)
    : runner(owner),
      id(number),
      request(std::move(asked)),
      setup(std::move(prepared)),
      sink(std::move(listener)),
      admitted(when),
      // The runner has no clock: the reply must not look at one either.
      deadline(std::exchange(request.deadline, std::nullopt)),
      told(owner, *this),
      rendered_setup(setup) {
    if (owner.record_ != nullptr) record_answers();
}

void Runner::Task::started(std::uint64_t conversation_number, int reused, Reuse reuse,
                           const std::string& reason) {
    if (runner.record_ != nullptr) {
        JsonLine line;
        line.add("t", runner.ticks_)
            .add("event", "start")
            .add("id", id)
            .add("conversation", conversation_number)
            .add("reused", reused)
            .add("reuse", name_of(reuse))
            .add("reason", reason);
        if (raw_log) line.add("prompt", request.prompt);
        runner.note(line);
    }
    sink->on_start({.id = id,
                    .prompt_tokens = static_cast<int>(request.prompt.size()),
                    .reused_tokens = reused,
                    .reuse = reuse,
                    .raw_log = raw_log,
                    .reason = reason,
                    .queued_ms = 1000 * seconds_since(admitted)});
}

void Runner::Task::failed(const Error& error) noexcept {
    over = true;
    try {
        ++runner.stats_.failed[std::string(name_of(error.kind))];
        runner.stats_.request_seconds.add(seconds_since(admitted));
        if (runner.record_ != nullptr) {
            JsonLine line;
            line.add("t", runner.ticks_).add("event", "failure").add("id", id);
            line.add("kind", name_of(error.kind)).add("message", error.message);
            runner.note(line);
        }
    } catch (...) {  // the client is told all the same
    }
    try {
        leave();
        sink->on_failure(error);
    } catch (...) {  // nobody is left to be told
    }
}

void Runner::Task::leave() {
    if (std::exchange(left, true)) return;
    if (runner.options_.leaving) runner.options_.leaving(id);
}

std::vector<std::int32_t> Runner::Task::next_prompt() {
    if (!ended || !request.next_prompt) return {};
    if (ended->reason == FinishReason::cancelled || ended->reason == FinishReason::deadline) return {};
    std::vector<std::int32_t> ids = request.next_prompt(reply->delivered(), *ended);
    const int vocabulary = runner.loaded_.config.text.vocab_size;
    for (const std::int32_t one : ids) {
        if (one < 0 || one >= vocabulary) ids.clear();
    }
    if (ids.size() > static_cast<std::size_t>(runner.loaded_.context)) ids.clear();
    if (runner.record_ != nullptr) {
        JsonLine line;
        line.add("t", runner.ticks_).add("event", "next_prompt").add("id", id).add("ids", ids);
        runner.note(line);
    }
    return ids;
}

void Runner::Task::record_answers() {
    const auto noted = [this](const char* question, bool answer) {
        JsonLine line;
        line.add("t", runner.ticks_).add("event", "ask").add("id", id);
        line.add("question", question).add("answer", answer);
        runner.note(line);
        return answer;
    };
    using Ids = std::span<const std::int32_t>;
    if (request.shows_nothing) {
        request.shows_nothing = [noted, ask = std::move(request.shows_nothing)](Ids ids) {
            return noted("shows_nothing", ask(ids));
        };
    }
    if (request.inside_quote) {
        request.inside_quote = [noted, ask = std::move(request.inside_quote)](Ids ids) {
            return noted("inside_quote", ask(ids));
        };
    }
    if (request.is_space) {
        request.is_space = [noted, ask = std::move(request.is_space)](std::int32_t one) {
            return noted("is_space", ask(one));
        };
    }
}

}  // namespace dgemma::engine
