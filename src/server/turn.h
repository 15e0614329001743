// A client's request from its prompt to its end: the takes it needs, what they tell, and the reply that comes
// of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reply/prompt.h"
#include "reply/reply_text.h"
#include "server/reply_writer.h"
#include "server/request.h"
#include "server/served_model.h"
#include "server/take.h"

namespace dgemma::server {

struct TurnOptions {
    bool exact = false;
    bool tool_validate = false;  // calls that do not fit their schema are made again
    bool tool_repair = false;    // the model is told what was wrong with a call before it makes it again
    int deadline_seconds = 0;    // 0: none
};

// How often a call is made again before it is given up.
inline constexpr int kCallAttempts = 4;

class Turn : public std::enable_shared_from_this<Turn> {
  public:
    // Runs a function on the thread that the turn lives on, later.
    using Post = std::function<void(std::function<void()>)>;

    // Everything below happens on one thread. on_change: there is something to write, or the turn is over.
    Turn(std::shared_ptr<ServedModel> model, GenerationRequest request, reply::Prompt prompt,
         const ReplyHead& head, TurnOptions options, Post post, std::function<void()> on_change,
         engine::Continuation continuation = {});

    // Hands the first take to the engine. -> why that is not possible, in which case the turn is over.
    std::optional<ApiError> begin();
    // Nobody waits for the reply any more.
    void cancel();

    // Drafts are not written until this is taken back.
    void hold_drafts(bool hold) { drafts_held_ = hold; }

    // Keeps the reply for a client that goes on from it, where it may be kept.
    void remember(ResponseStore& store);

    [[nodiscard]] bool over() const { return over_; }
    // Why the turn is over before its reply; a stream has been told.
    [[nodiscard]] const std::optional<ApiError>& failure() const { return failure_; }
    [[nodiscard]] ReplyWriter& writer() { return *writer_; }
    [[nodiscard]] bool streams() const { return request_.stream; }
    [[nodiscard]] std::uint64_t seed() const { return seed_; }
    [[nodiscard]] const Usage& usage() const { return usage_; }

  private:
    class Listener;

    std::optional<ApiError> submit();
    [[nodiscard]] engine::Request engine_request() const;
    [[nodiscard]] std::vector<diffusion::Pin> pins() const;
    [[nodiscard]] std::string_view to_blame(const Error& error, int canvas, bool shrink) const;

    void on_started(const engine::StartEvent& event);
    void on_step(const TakeStep& step);
    void on_pieces(const std::vector<text::ParserEvent>& pieces, const std::vector<std::int32_t>& ids);
    void on_ended(TakeEnd end);
    void on_failed(const Error& error);

    // What the next prompt of this conversation will begin with, asked by the engine when the reply is over.
    [[nodiscard]] std::function<std::vector<std::int32_t>(std::span<const std::int32_t>,
                                                          const engine::EndEvent&)>
    next_prompt() const;
    void remember_round(const TakeEnd& end);
    void show(const text::ParserEvent& piece);
    void take_again(TakeEnd& end);
    void go_on();  // with the next take
    void finish(const TakeEnd& end);
    void fail(ApiError error);
    void add_stats(const TakeEnd& end);
    [[nodiscard]] Status check(const text::ToolCall& call) const;

    std::shared_ptr<ServedModel> model_;
    GenerationRequest request_;
    TurnOptions options_;
    Post post_;
    std::function<void()> on_change_;
    std::unique_ptr<ReplyWriter> writer_;
    std::optional<reply::ReplyText> draft_reader_;

    std::vector<std::int32_t> log_;  // what the next take goes on from
    std::size_t prompt_tokens_;
    bool starts_in_thought_;
    std::uint64_t seed_;
    bool must_call_;      // no call has been made yet, and one must be
    bool after_thought_;  // the call comes behind a thought that is still to come
    int attempt_ = 0;
    std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();

    engine::Continuation continuation_;  // of the first take
    std::optional<engine::RequestId> running_;
    engine::RequestId last_id_ = 0;
    int take_ = 0;  // events of earlier ones are late
    bool started_ = false;
    bool over_ = false;
    bool drafts_held_ = false;
    std::optional<ApiError> failure_;
    std::vector<text::ToolCall> calls_;
    Usage usage_;
    Value::Array blocks_, broken_, invalid_;
    std::int64_t steps_ = 0;
    double queued_ms_ = 0, prefill_ms_ = 0, denoise_ms_ = 0;
    std::string reuse_;
    Value::Array approximations_;
};

// A random name: letters and digits.
std::string random_name(std::size_t length);

}  // namespace dgemma::server
