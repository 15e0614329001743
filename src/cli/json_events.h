// `ask --json`: events as JSON lines. Their names and keys are listed in docs/EVENTS.md.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "reply/reply_sink.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

class JsonEvents : public reply::ReplyView {
  public:
    struct Start {
        std::string model;
        std::size_t prompt_tokens = 0;
        int context = 0;
        std::uint64_t seed = 0;
        int canvas_length = 0;
    };
    // The start event is written when the engine tells the first of its own: a request that it refuses writes
    // nothing.
    JsonEvents(std::ostream& out, const text::Tokenizer& tokenizer, Start start)
        : out_(out), tokenizer_(tokenizer), start_(std::move(start)) {}

    // The reply could not be completed. Says nothing where it has not begun.
    void error(const std::string& message);

    void on_prefill(const engine::PrefillEvent& event) override;
    void on_step(const engine::StepEvent& event, const reply::ReplyText& so_far) override;
    void on_block(const engine::BlockEvent& event) override;
    void on_text(const text::ParserEvent& event) override;
    void on_end(const engine::EndEvent& end, const text::ParsedReply& whole) override;

  private:
    std::ostream& out_;
    const text::Tokenizer& tokenizer_;
    Start start_;
    bool started_ = false;
    int calls_ = 0;
};

}  // namespace dgemma::cli
