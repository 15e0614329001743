#include "server/take.h"

#include <utility>

namespace dgemma::server {

using text::Control;
using text::ParserEvent;

Take::Take(const text::Tokenizer& tokenizer, TakeOptions options, std::shared_ptr<TakeListener> listener)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      markers_(reply::markers_of(tokenizer)),
      reader_(tokenizer, options_.parser, options_.stops),
      quotes_(markers_),
      waiting_(options_.must_call && options_.after_thought),
      in_thought_(options_.parser.start == text::ParserOptions::Start::thought) {}

void Take::on_step(const engine::StepEvent& event) {
    if (!options_.drafts) return;
    listener_->step({.block = event.block,
                     .step = event.step,
                     .max_steps = event.max_steps,
                     .accepted = event.accepted,
                     .mean_entropy = event.mean_entropy,
                     .draft = {event.argmax.begin(), event.argmax.end()}});
}

bool Take::thought_over(std::int32_t id, std::optional<std::int32_t> next) {
    const auto control = markers_.control_of(id);
    if (!in_thought_) {
        // The model opens a thought, or calls of its own accord, or does neither.
        if (control == Control::pad) return false;
        if (control == Control::call_open) waiting_ = false;
        return control != Control::channel_open && control != Control::call_open;
    }
    if (control != Control::channel_close) return false;
    waiting_ = false;
    return !next || markers_.control_of(*next) != Control::call_open;
}

void Take::count(std::int32_t id) {
    const bool literal = quotes_.inside_open_quote();
    quotes_.feed(id);
    const auto control = markers_.control_of(id);
    if (control && !literal) {
        if (*control == Control::call_open) {
            call_at_ = end_.ids.size();
            reasoning_at_call_ = end_.reasoning_tokens;
        }
        if (*control == Control::channel_open) in_thought_ = true;
        if (*control == Control::channel_close || *control == Control::call_open) in_thought_ = false;
    } else if (in_thought_) {
        ++end_.reasoning_tokens;
    }
    end_.ids.push_back(id);
}

void Take::add(ParserEvent event, std::vector<ParserEvent>& out) {
    // Ids are read one by one, and shown together.
    const bool goes_on =
        !out.empty() && out.back().kind == event.kind && out.back().broken_call.empty() &&
        event.broken_call.empty() &&
        (event.kind == ParserEvent::Kind::content || event.kind == ParserEvent::Kind::reasoning);
    if (goes_on)
        out.back().text += event.text;
    else
        out.push_back(std::move(event));
}

void Take::judge(std::vector<ParserEvent> events, std::vector<ParserEvent>& out) {
    for (ParserEvent& event : events) {
        if (end_.cut != Cut::none) return;
        std::string wrong;
        if (event.kind == ParserEvent::Kind::tool_call) {
            end_.bad_name = event.call.name;
            if (const Status status = options_.check ? options_.check(event.call) : Status(); !status)
                wrong = status.error().message;
        } else if (!event.broken_call.empty()) {
            end_.bad_name.clear();
            if (options_.check || options_.must_call) wrong = event.broken_call;
        }
        if (!wrong.empty()) {
            end_.cut = Cut::bad_call;
            end_.bad_reason = std::move(wrong);
            end_.bad.push_back(std::move(event));
            end_.bad_ids.assign(end_.ids.begin() + static_cast<std::ptrdiff_t>(call_at_), end_.ids.end());
            end_.ids.resize(call_at_);
            end_.reasoning_tokens = reasoning_at_call_;
            return;
        }
        if (event.kind == ParserEvent::Kind::tool_call) {
            ++end_.calls;
            add(std::move(event), out);
            if (options_.one_call) end_.cut = Cut::enough_calls;
            continue;
        }
        if (!event.broken_call.empty()) end_.broken_calls.push_back(event.broken_call);
        if (event.kind == ParserEvent::Kind::stop) continue;
        // In front of a call that must be made there is nothing to say.
        if (options_.must_call && end_.calls == 0 && event.kind == ParserEvent::Kind::content) continue;
        add(std::move(event), out);
    }
}

engine::BlockVerdict Take::on_block(const engine::BlockEvent& event) {
    std::vector<ParserEvent> out;
    std::vector<std::int32_t> read;
    for (std::size_t i = 0; i < event.ids.size() && end_.cut == Cut::none && !reader_.complete(); ++i) {
        const std::int32_t id = event.ids[i];
        if (waiting_) {
            const bool was_in_thought = in_thought_;
            const auto next = i + 1 < event.ids.size() ? std::optional(event.ids[i + 1]) : event.stop_id;
            if (thought_over(id, next)) {
                end_.cut = Cut::thought_over;
                if (!was_in_thought) break;  // before what is neither thought nor call
            }
        }
        count(id);
        read.push_back(id);
        std::vector<ParserEvent> events = reader_.feed(std::span(&id, 1));
        const Cut cut = std::exchange(end_.cut, Cut::none);
        judge(std::move(events), out);
        if (end_.cut == Cut::none) end_.cut = cut;
        if (end_.cut == Cut::none && reader_.complete() && reader_.stop_string()) {
            end_.cut = Cut::stop_string;
            end_.stop_string = *reader_.stop_string();
        }
    }
    if (!out.empty() || !read.empty()) listener_->pieces(std::move(out), std::move(read));
    return end_.cut != Cut::none || reader_.complete() ? engine::BlockVerdict::stop_string
                                                       : engine::BlockVerdict::go_on;
}

void Take::on_end(const engine::EndEvent& event) {
    if (end_.cut == Cut::none) {
        std::vector<ParserEvent> out;
        judge(reader_.finish(event.stop_id), out);
        // With thinking on, a reply that ended in its thought has no call yet, and neither has an empty one.
        if (end_.cut == Cut::none && waiting_ && event.reason == engine::FinishReason::stop)
            end_.cut = Cut::thought_over;
        if (!out.empty()) listener_->pieces(std::move(out), {});
    }
    end_.engine = event;
    end_.in_thought = in_thought_;
    listener_->ended(std::move(end_));
}

}  // namespace dgemma::server
