#include "cli/json_events.h"

#include <optional>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/words.h"
#include "text/value.h"

namespace dgemma::cli {

namespace {

using Json = nlohmann::ordered_json;

// One line. Everything written is UTF-8 already; `replace` keeps dump() from throwing if it ever is not.
void write(std::ostream& out, const Json& json) {
    out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
}

// Arguments go out as text::to_json writes them, since nlohmann would round integers beyond 64 bits.
std::string call_json(const text::ToolCall& call) {
    return "\"name\":" + text::json_quoted(call.name) + ",\"arguments\":" + text::to_json(call.arguments);
}

// 0.8f as 0.8 and not as the double next to it.
double shortest(float value) { return read_real(fmt::format("{}", value)).value_or(value); }

Json or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

template <class Block>
void put_block(Json& json, const Block& block) {
    json["steps"] = block.steps;
    json["attempts"] = block.attempts;
    json["trimmed"] = block.trimmed;
    json["stop_rule"] = block.stop_rule;
    json["guards"] = block.guards;
}

Json stats_json(const engine::Stats& stats) {
    Json blocks = Json::array();
    for (const engine::BlockStats& block : stats.blocks)
        put_block(blocks.emplace_back(Json::object()), block);
    Json out;
    out["prompt_tokens"] = stats.prompt_tokens;
    out["reused_tokens"] = stats.reused_tokens;
    out["output_tokens"] = stats.output_tokens;
    out["steps"] = stats.steps;
    out["blocks"] = std::move(blocks);
    out["prefill_ms"] = stats.prefill_ms;
    out["denoise_ms"] = stats.denoise_ms;
    out["total_ms"] = stats.total_ms;
    out["tokens_per_second"] = stats.tokens_per_second();
    out["approximations"] = stats.approximations;
    return out;
}

std::optional<std::string> token_of(const text::Tokenizer& tokenizer, std::optional<std::int32_t> id) {
    return id ? std::optional(std::string(tokenizer.token(*id))) : std::nullopt;
}

}  // namespace

void JsonEvents::error(const std::string& message) {
    if (started_) write(out_, {{"event", "error"}, {"message", message}});
}

void JsonEvents::on_prefill(const engine::PrefillEvent& event) {
    if (!started_) {
        started_ = true;
        write(out_, {{"event", "start"},
                     {"model", start_.model},
                     {"prompt_tokens", start_.prompt_tokens},
                     {"context", start_.context},
                     {"seed", start_.seed},
                     {"canvas_length", start_.canvas_length}});
    }
    write(out_,
          {{"event", "prefill"}, {"done", event.done}, {"total", event.total}, {"reused", event.reused}});
}

void JsonEvents::on_step(const engine::StepEvent& event, const reply::ReplyText& so_far) {
    reply::ReplyText draft = so_far;
    std::string text;
    const auto collect = [&](const std::vector<text::ParserEvent>& pieces) {
        for (const text::ParserEvent& piece : pieces) text += piece.text;
    };
    collect(draft.feed(event.argmax));
    collect(draft.finish(std::nullopt));
    write(out_, {{"event", "step"},
                 {"block", event.block},
                 {"attempt", event.attempt},
                 {"step", event.step},
                 {"max_steps", event.max_steps},
                 {"temperature", shortest(event.temperature)},
                 {"mean_entropy", shortest(event.mean_entropy)},
                 {"accepted", event.accepted},
                 {"stable", event.stable},
                 {"confident", event.confident},
                 {"milliseconds", event.milliseconds},
                 {"draft", text}});
}

void JsonEvents::on_block(const engine::BlockEvent& event) {
    Json json = {{"event", "block"}, {"block", event.block}};
    json["tokens"] = std::vector<std::int32_t>(event.ids.begin(), event.ids.end());
    json["stop"] = or_null(token_of(tokenizer_, event.stop_id));
    put_block(json, event);
    json["milliseconds"] = event.milliseconds;
    write(out_, json);
}

void JsonEvents::on_text(const text::ParserEvent& event) {
    switch (event.kind) {
        case text::ParserEvent::Kind::content:
            return write(out_, {{"event", "content"}, {"text", event.text}});
        case text::ParserEvent::Kind::reasoning:
            return write(out_, {{"event", "reasoning"}, {"text", event.text}});
        case text::ParserEvent::Kind::tool_call:
            out_ << "{\"event\":\"tool_call\",\"index\":" << calls_++ << "," << call_json(event.call) << "}\n"
                 << std::flush;
            return;
        case text::ParserEvent::Kind::stop:
            return;  // in the end event
    }
}

void JsonEvents::on_end(const engine::EndEvent& end, const text::ParsedReply& whole) {
    std::string calls;
    for (const text::ToolCall& call : whole.tool_calls)
        calls += (calls.empty() ? "{" : ",{") + call_json(call) + "}";
    Json head = {{"event", "end"}, {"reason", engine::name_of(end.reason)}};
    head["stop"] = or_null(token_of(tokenizer_, end.stop_id));
    head["content"] = or_null(whole.content);
    head["reasoning_content"] = or_null(whole.reasoning);
    std::string line = head.dump(-1, ' ', false, Json::error_handler_t::replace);
    line.pop_back();  // the closing brace
    out_ << line << ",\"tool_calls\":[" << calls << "],\"stats\":" << stats_json(end.stats).dump() << "}\n"
         << std::flush;
}

}  // namespace dgemma::cli
