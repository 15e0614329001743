// POST /v1/chat/completions and /v1/completions.
#include <utility>

#include <fmt/format.h>

#include "server/common_fields.h"
#include "server/conversation.h"

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
    if (given == nullptr || complaint.error) return;
    constexpr std::string_view forms =
        R"(must be "auto", "none", "required" or {"type": "function", "function": {"name": ...}})";
    if (given->is(Type::string)) {
        const std::string& word = given->as_string();
        if (word == "auto" || word == "none" || word == "required")
            return choose_tool("tool_choice", word, "", out, complaint);
    }
    if (!given->is(Type::object))
        return complaint.refuse("tool_choice", fmt::format("tool_choice {}.", forms));
    Fields fields(*given, "tool_choice.", complaint);
    const std::string type = fields.needed_text("type");
    if (!complaint.error && type != "function")
        return complaint.refuse("tool_choice.type",
                                fmt::format("tool_choice.type names none: tool_choice {}.", forms));
    const Value* function = fields.object("function");
    if (function == nullptr)
        return complaint.refuse("tool_choice.function",
                                fmt::format("tool_choice.function is missing: tool_choice {}.", forms));
    Fields inner(*function, "tool_choice.function.", complaint);
    const std::string name = inner.needed_text("name");
    choose_tool("tool_choice.function.name", "named", name, out, complaint);
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
    read_effort(fields, "reasoning_effort", out, complaint);
    read_max_tokens(fields, {"max_completion_tokens", "max_tokens"}, out);
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
    const auto is_prompt = [](const Value& item) { return item.is(Type::string) || item.is(Type::array); };
    if (items.size() == 1 && is_prompt(items.front())) return read_prompt(&items.front(), out, complaint);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const auto id = token_id(items[i]);
        if (id) {
            out.ids.push_back(*id);
            continue;
        }
        std::string place = fmt::format("prompt[{}]", i);
        std::string message = is_prompt(items[i]) ? place + " is another prompt; send one request for each."
                                                  : fmt::format("{} is no token id; {}", place, what);
        return complaint.refuse(std::move(place), std::move(message));
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
    read_max_tokens(fields, {"max_tokens"}, out);
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
