// One request to the engine, as part of a client's reply. Most replies are one take; a tool call that must be
// made, or made again, takes several, each of which goes on where the one before was cut.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/scheduler.h"
#include "reply/reply_text.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace dgemma::server {

// Why a take ended before the engine ended it.
enum class Cut : std::uint8_t {
    none,
    stop_string,
    enough_calls,  // one call was wanted, and is there
    thought_over,  // the thought is closed and what follows is not the call that must follow
    bad_call,      // a call that does not parse or does not pass the check
};

struct TakeStep {
    int block = 0, step = 0, max_steps = 0, accepted = 0;
    float mean_entropy = 0;
    std::vector<std::int32_t> draft;  // the most likely ids of the canvas
};

struct TakeEnd {
    engine::EndEvent engine;
    Cut cut = Cut::none;
    std::string stop_string;
    std::vector<std::int32_t> ids;  // delivered up to the cut; of a bad call, up to where it begins
    int reasoning_tokens = 0;       // of ids
    int calls = 0;
    bool in_thought = false;                // ids leave one open
    std::vector<std::string> broken_calls;  // what was wrong with calls that are shown as text
    // Of a bad call:
    std::string bad_reason;
    std::string bad_name;                // empty where it could not be read
    std::vector<std::int32_t> bad_ids;   // from its opening marker on
    std::vector<text::ParserEvent> bad;  // how it would have been shown
};

// What a take tells, in this order: started, then blocks and steps, then an end or a failure. Told on the
// thread that owns the model; must return soon.
class TakeListener {
  public:
    virtual ~TakeListener() = default;
    virtual void started(engine::StartEvent event) = 0;
    virtual void step(TakeStep step) = 0;
    // pieces: what became final; ids: what it was read from.
    virtual void pieces(std::vector<text::ParserEvent> pieces, std::vector<std::int32_t> ids) = 0;
    virtual void ended(TakeEnd end) = 0;
    virtual void failed(Error error) = 0;
};

struct TakeOptions {
    text::ParserOptions parser;
    std::vector<std::string> stops;
    bool one_call = false;       // ends behind the first call
    bool must_call = false;      // nothing but a call counts: text is not shown
    bool after_thought = false;  // with must_call: begins in front of a thought, or in it
    bool drafts = false;
    // Whether a call passes; a sentence if not. Unset: every call that parses does, and one that does not is
    // shown as text.
    std::function<Status(const text::ToolCall&)> check;
};

class Take : public engine::RequestSink {
  public:
    Take(const text::Tokenizer& tokenizer, TakeOptions options, std::shared_ptr<TakeListener> listener);

    void on_start(const engine::StartEvent& event) override { listener_->started(event); }
    void on_step(const engine::StepEvent& event) override;
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override;
    void on_end(const engine::EndEvent& event) override;
    void on_failure(const Error& error) override { listener_->failed(error); }

  private:
    // Whether the thought that must come first is over at `id`, so that the take ends before or behind it.
    bool thought_over(std::int32_t id, std::optional<std::int32_t> next);
    void count(std::int32_t id);
    // Sorts what the reader found: into `out`, or it is a reason to cut.
    void judge(std::vector<text::ParserEvent> events, std::vector<text::ParserEvent>& out);
    void add(text::ParserEvent event, std::vector<text::ParserEvent>& out);

    TakeOptions options_;
    std::shared_ptr<TakeListener> listener_;
    text::MarkerIds markers_;
    reply::ReplyText reader_;
    text::ToolQuoteTracker quotes_;
    TakeEnd end_;
    bool waiting_;  // for the thought to be over
    bool in_thought_;
    std::size_t call_at_ = 0;  // where in ids the last call begins
    int reasoning_at_call_ = 0;
};

}  // namespace dgemma::server
