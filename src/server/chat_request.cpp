// POST /v1/chat/completions and /v1/completions.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "server/common_fields.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

void read_stream_options(Fields& fields, GenerationRequest& out, Complaint& complaint) {
    const Value* given = fields.object("stream_options");
    if (given == nullptr) return;
    Fields options(*given, "stream_options.", complaint);
    out.include_usage = options.toggle("include_usage").value_or(false);
    options.ignore({"include_obfuscation", "continuous_usage_stats"});
    options.finish();
}

// {"type": "function", "function": {"name"}}, or one of the words.
void read_tool_choice(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    if (given->is(Type::string)) {
        const std::string& word = given->as_string();
        if (word == "auto" || word == "none" || word == "required")
            return choose_tool("tool_choice", word, "", out, complaint);
    } else if (given->is(Type::object)) {
        const Value* function = given->find("function");
        const std::string_view name =
            is(function, Type::object) ? text_at(*function, "name") : std::string_view();
        if (text_at(*given, "type") == "function" && !name.empty())
            return choose_tool("tool_choice", "named", name, out, complaint);
    }
    complaint.refuse("tool_choice",
                     "tool_choice must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", "
                     "\"function\": {\"name\": ...}}.");
}

// A refusal that a client sends back is what the assistant said.
Value with_refusals_as_text(const Value& messages) {
    if (!messages.is(Type::array)) return messages;
    Value::Array out = messages.as_array();
    for (Value& message : out) {
        const Value* content = message.find("content");
        if (!is(content, Type::array)) continue;
        Value::Array parts = content->as_array();
        for (Value& part : parts) {
            if (text_at(part, "type") != "refusal") continue;
            part = object({{"type", string("text")}, {"text", string(text_at(part, "refusal"))}});
        }
        message.set("content", Value::array(std::move(parts)));
    }
    return Value::array(std::move(out));
}

void read_effort(Fields& fields, GenerationRequest& out, Complaint& complaint) {
    const auto effort = fields.text("reasoning_effort");
    if (!effort) return;
    constexpr std::array<std::string_view, 7> known = {"none", "minimal", "low", "medium",
                                                       "high", "xhigh",   "max"};
    if (std::find(known.begin(), known.end(), *effort) == known.end()) {
        return complaint.refuse("reasoning_effort",
                                "reasoning_effort must be none, minimal, low, medium, high or xhigh.");
    }
    if (!out.chat.enable_thinking) out.chat.enable_thinking = *effort != "none";
}

}  // namespace

std::optional<ApiError> read_chat(const Value& body, bool lenient, GenerationRequest& out) {
    if (auto error = no_object(body)) return error;
    Complaint complaint{.lenient = lenient};
    Fields fields(body, "", complaint);
    out.api = Api::chat;
    read_common(fields, 2, out, complaint);
    read_neutral(fields);
    fields.neutral("store", {"false"});
    read_stream_options(fields, out, complaint);
    read_stops(fields, "stop", out, complaint);
    read_effort(fields, out, complaint);
    const auto newer = fields.whole("max_completion_tokens", 1, most_tokens);
    const auto older = fields.whole("max_tokens", 1, most_tokens);
    out.max_tokens = static_cast<int>(newer ? *newer : older.value_or(0));
    if (const auto parallel = fields.toggle("parallel_tool_calls")) out.parallel_tool_calls = *parallel;
    fields.neutral("logprobs", {"false"});
    fields.neutral("top_logprobs", {"0"});
    fields.neutral("response_format", {R"({"type":"text"})"});
    fields.neutral("modalities", {R"(["text"])"});
    fields.neutral("verbosity", {R"("medium")"});
    fields.never("audio", "only text is written");
    fields.never("prediction", "every reply is denoised from noise");
    fields.never("functions", "they are the predecessor of tools");
    fields.never("function_call", "it is the predecessor of tool_choice");
    fields.never("web_search_options", "there is no web search", true);
    const Value* messages = fields.take("messages");
    const Value* tools = fields.list("tools");
    const Value* choice = fields.take("tool_choice");
    fields.finish();
    if (messages == nullptr) complaint.refuse("messages", "messages is missing; send a list of messages.");
    if (complaint.error) return complaint.error;
    read_conversation(with_refusals_as_text(*messages), tools != nullptr ? *tools : Value(), out, complaint);
    read_tool_choice(choice, out, complaint);
    return complaint.error;
}

namespace {

void read_prompt(const Value* prompt, GenerationRequest& out, Complaint& complaint) {
    constexpr std::string_view what = "prompt must be one text, or one list of token ids.";
    if (is(prompt, Type::string)) {
        out.text = prompt->as_string();
        return;
    }
    if (!is(prompt, Type::array) || prompt->as_array().empty())
        return complaint.refuse("prompt", std::string(what));
    const Value::Array& items = prompt->as_array();
    if (items.size() == 1 && !items.front().is(Type::integer))
        return read_prompt(&items.front(), out, complaint);
    for (const Value& item : items) {
        if (!item.is(Type::integer)) {
            return complaint.refuse("prompt", item.is(Type::string) || item.is(Type::array)
                                                  ? "prompt holds several prompts; send one request for each."
                                                  : std::string(what));
        }
        const std::string& digits = item.as_integer().digits;
        // The largest vocabulary has six digits; what is longer, or negative, is no id.
        if (digits.size() > 9 || digits.front() == '-')
            return complaint.refuse(
                "prompt", fmt::format("prompt holds {}, which is no token id.", digits.substr(0, 40)));
        out.ids.push_back(static_cast<std::int32_t>(std::stol(digits)));
    }
}

}  // namespace

std::optional<ApiError> read_completion(const Value& body, bool lenient, GenerationRequest& out) {
    if (auto error = no_object(body)) return error;
    Complaint complaint{.lenient = lenient};
    Fields fields(body, "", complaint);
    out.api = Api::completions;
    read_common(fields, 2, out, complaint);
    read_neutral(fields);
    read_stream_options(fields, out, complaint);
    read_stops(fields, "stop", out, complaint);
    out.max_tokens = static_cast<int>(fields.whole("max_tokens", 1, most_tokens).value_or(0));
    fields.neutral("best_of", {"1"});
    fields.neutral("echo", {"false"});
    fields.neutral("logprobs", {"false"});  // 0 asks for that of each token
    fields.neutral("suffix", {R"("")"});
    const Value* prompt = fields.take("prompt");
    fields.finish();
    read_prompt(prompt, out, complaint);
    return complaint.error;
}

}  // namespace dgemma::server
