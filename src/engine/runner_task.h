// A request of a Runner, and the sink that stands between it and its client: it counts and records what goes
// by.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/runner.h"

namespace dgemma::engine {

class Runner::TaskSink final : public Sink {
  public:
    TaskSink(Runner& runner, Task& task) : runner_(runner), task_(task) {}
    void on_prefill(const PrefillEvent& event) override;
    void on_step(const StepEvent& event) override;
    BlockVerdict on_block(const BlockEvent& event) override;
    void on_end(const EndEvent& event) override;

  private:
    Runner& runner_;
    Task& task_;
};

struct Runner::Task {
    Task(Runner& owner, RequestId number, Request asked, ReplySetup prepared,
         std::shared_ptr<RequestSink> listener, Clock::time_point when);
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    [[nodiscard]] Session& session() const { return conversation->session; }
    void started(std::uint64_t conversation_number, int reused, Reuse reuse, const std::string& reason);
    void failed(const Error& error) noexcept;
    void leave();  // makes room for another request, once
    // What the client says about its next turn, asked once after a reply that came to its end.
    [[nodiscard]] std::vector<std::int32_t> next_prompt();
    // The request's own functions, with what they answer recorded.
    void record_answers();

    Runner& runner;
    RequestId id;
    Request request;
    ReplySetup setup;
    std::shared_ptr<RequestSink> sink;
    Clock::time_point admitted;
    std::optional<Clock::time_point> deadline;
    TaskSink told;

    std::vector<std::int32_t> rendered;  // of a continuation: the prompt as the client's messages give it,
    ReplySetup rendered_setup;           // and what it comes to
    bool raw_log = false;                // the raw token log is answered in its place
    Conversation* conversation = nullptr;
    std::unique_ptr<Reply> reply;
    std::optional<EndEvent> ended;
    RequestId waits_for = 0;  // the request that encodes what both begin with
    bool left = false;        // its place is another's
    bool over = false;        // the client has been told the end, or a failure
};

std::string_view name_of(BlockVerdict verdict);  // "go_on", "stop_string", "cancel"

}  // namespace dgemma::engine
