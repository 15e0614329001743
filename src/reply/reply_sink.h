// The engine's events on their way to a reader.
#pragma once

#include "engine/events.h"
#include "reply/reply_text.h"

namespace dgemma::reply {

// Shows a reply: to a person, or as JSON.
class ReplyView {
  public:
    virtual ~ReplyView() = default;
    virtual void on_prefill(const engine::PrefillEvent&) {}
    // so_far: the reply before this block. A copy of it, fed with the draft, says how the draft would read.
    virtual void on_step(const engine::StepEvent&, const ReplyText& /*so_far*/) {}
    virtual void on_block(const engine::BlockEvent&) {}
    // More of the reply is final: after the block that made it so, before the end.
    virtual void on_text(const text::ParserEvent& event) = 0;
    virtual void on_end(const engine::EndEvent& end, const text::ParsedReply& whole) = 0;
};

// Reads the text out of the blocks, stops the reply at a stop string, and passes everything on.
class ReplySink : public engine::Sink {
  public:
    // Both outlive the sink. reply: nothing fed yet.
    ReplySink(ReplyText& reply, ReplyView& view) : reply_(reply), view_(view) {}

    void on_prefill(const engine::PrefillEvent& event) override { view_.on_prefill(event); }
    void on_step(const engine::StepEvent& event) override { view_.on_step(event, reply_); }
    engine::BlockVerdict on_block(const engine::BlockEvent& event) override {
        view_.on_block(event);
        for (const text::ParserEvent& piece : reply_.feed(event.ids)) view_.on_text(piece);
        return reply_.complete() ? engine::BlockVerdict::stop_string : engine::BlockVerdict::go_on;
    }
    void on_end(const engine::EndEvent& event) override {
        for (const text::ParserEvent& piece : reply_.finish(event.stop_id)) view_.on_text(piece);
        view_.on_end(event, reply_.whole());
    }

  private:
    ReplyText& reply_;
    ReplyView& view_;
};

}  // namespace dgemma::reply
