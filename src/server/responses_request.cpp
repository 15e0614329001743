// POST /v1/responses: items in place of messages.
#include <utility>

#include <fmt/format.h>

#include "server/common_fields.h"
#include "server/sealed_thought.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// Puts items together to messages: a thought, what is said and the calls of one turn are one of them.
class Conversation {
  public:
    explicit Conversation(Complaint& complaint) : complaint_(complaint) {}

    void item(const Value& item, const std::string& where) {
        const std::string_view type = text_at(item, "type");
        if (type.empty() || type == "message") return message(item, where);
        if (type == "reasoning") return reasoning(item);
        if (type == "function_call") return call(item, where);
        if (type == "function_call_output") return output(item, where);
        if (type == "item_reference") {
            return complaint_.refuse(
                "input", fmt::format("{} refers to an item that is not kept here (any more); send the item "
                                     "itself.",
                                     where));
        }
        complaint_.refuse("input", fmt::format("{} has the type {}; message, reasoning, function_call and "
                                               "function_call_output are read.",
                                               where, text::json_quoted(type.substr(0, 60))));
    }

    void say(std::string_view role, Value content) { out_.push_back(message_of(role, std::move(content))); }

    Value::Array take() { return std::move(out_); }

  private:
    // The assistant message that goes on with this item.
    Value& assistant() {
        const bool open = !out_.empty() && text_at(out_.back(), "role") == "assistant";
        if (!open) say("assistant", Value());
        return out_.back();
    }

    void message(const Value& item, const std::string& where) {
        const std::string_view role = text_at(item, "role");
        const Value* content = item.find("content");
        Value parts;
        if (is(content, Type::string)) {
            parts = *content;
        } else if (is(content, Type::array)) {
            Value::Array out;
            for (std::size_t i = 0; i < content->as_array().size(); ++i) {
                const Value& part = content->as_array()[i];
                const std::string_view type = text_at(part, "type");
                if (type == "input_image") {
                    out.push_back(object({{"type", string("image")}}));
                } else if (type == "input_text" || type == "output_text" || type == "text" ||
                           type == "refusal") {
                    const std::string_view key = type == "refusal" ? "refusal" : "text";
                    if (!is(part.find(key), Type::string)) {
                        return complaint_.refuse(
                            "input", fmt::format("{}.content[{}].{} must be a text.", where, i, key));
                    }
                    out.push_back(object({{"type", string("text")}, {"text", *part.find(key)}}));
                } else {
                    return complaint_.refuse(
                        "input",
                        fmt::format("{}.content[{}] has the type {}; input_text and output_text are read.",
                                    where, i, text::json_quoted(type.substr(0, 60))));
                }
            }
            parts = Value::array(std::move(out));
        } else {
            return complaint_.refuse("input", fmt::format("{} needs a role and content.", where));
        }
        // Right behind a thought, the message is what was said after it.
        if (role == "assistant" && !out_.empty() && is_null(out_.back().find("content")) &&
            text_at(out_.back(), "role") == "assistant") {
            out_.back().set("content", std::move(parts));
            return;
        }
        say(role, std::move(parts));
    }

    void reasoning(const Value& item) {
        std::string thought;
        const auto add = [&](const Value* parts) {
            if (!is(parts, Type::array) || !thought.empty()) return;
            for (const Value& part : parts->as_array())
                thought += (thought.empty() ? "" : "\n") + std::string(text_at(part, "text"));
        };
        add(item.find("content"));
        if (thought.empty()) thought = thought_of(text_at(item, "encrypted_content"));
        add(item.find("summary"));
        if (!thought.empty()) {
            say("assistant", Value());
            out_.back().set("reasoning_content", Value::string(std::move(thought)));
        }
    }

    void call(const Value& item, const std::string& where) {
        const std::string_view name = text_at(item, "name");
        if (name.empty() || !is(item.find("arguments"), Type::string))
            return complaint_.refuse("input",
                                     fmt::format("{} needs a name, and arguments as JSON text.", where));
        Value& message = assistant();
        Value::Array calls;
        if (const Value* given = message.find("tool_calls"); is(given, Type::array))
            calls = given->as_array();
        calls.push_back(
            object({{"id", string(text_at(item, "call_id"))},
                    {"type", string("function")},
                    {"function", object({{"name", string(name)}, {"arguments", *item.find("arguments")}})}}));
        message.set("tool_calls", Value::array(std::move(calls)));
    }

    void output(const Value& item, const std::string& where) {
        const Value* output = item.find("output");
        std::string result;
        if (is(output, Type::string)) {
            result = output->as_string();
        } else if (is(output, Type::array)) {
            for (const Value& part : output->as_array()) result += text_at(part, "text");
        } else {
            return complaint_.refuse("input", fmt::format("{}.output must be a text.", where));
        }
        say("tool", Value::string(std::move(result)));
        out_.back().set("tool_call_id", string(text_at(item, "call_id")));
    }

    Complaint& complaint_;
    Value::Array out_;
};

// {"type": "function", "name", "parameters"} to the form of the chat API.
Value tools_of(const Value* given, Complaint& complaint) {
    if (given == nullptr) return {};
    Value::Array out;
    for (std::size_t i = 0; i < given->as_array().size(); ++i) {
        const Value& tool = given->as_array()[i];
        if (text_at(tool, "type") != "function" || text_at(tool, "name").empty()) {
            complaint.refuse("tools",
                             fmt::format("tools[{}] must be {{\"type\": \"function\", \"name\": ..., "
                                         "\"parameters\": ...}}; no other tool can be called.",
                                         i));
            return {};
        }
        Value function = object({{"name", *tool.find("name")}});
        for (const std::string_view key : {"description", "parameters"}) {
            if (const Value* value = tool.find(key); !is_null(value)) function.set(key, *value);
        }
        Value::Object members;
        members.push_back({"type", string("function")});
        members.push_back({"function", std::move(function)});
        out.push_back(Value::object(std::move(members)));
    }
    return Value::array(std::move(out));
}

void read_tool_choice(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr || complaint.error) return;
    if (is(given, Type::string)) {
        const std::string& word = given->as_string();
        if (word == "auto" || word == "none" || word == "required")
            return choose_tool("tool_choice", word, "", out, complaint);
    } else if (text_at(*given, "type") == "function" && !text_at(*given, "name").empty()) {
        return choose_tool("tool_choice", "named", text_at(*given, "name"), out, complaint);
    }
    complaint.refuse(
        "tool_choice",
        "tool_choice must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\": "
        "...}.");
}

void read_reasoning(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "reasoning.", complaint);
    if (const auto effort = fields.text("effort")) out.chat.enable_thinking = *effort != "none";
    const auto summary = fields.text("summary");
    const auto older = fields.text("generate_summary");
    out.reasoning_summary = summary || older;
    fields.ignore({"context", "mode"});
    fields.finish();
}

void read_include(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    for (const Value& entry : given->as_array()) {
        if (is(&entry, Type::string) && entry.as_string() == "reasoning.encrypted_content") {
            out.reasoning_to_send_back = true;
        } else {
            complaint.cannot("include", "include can only hold \"reasoning.encrypted_content\" here.");
        }
    }
}

void read_text(const Value* given, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "text.", complaint);
    fields.neutral("format", {R"({"type":"text"})"});
    fields.neutral("verbosity", {R"("medium")"});
    fields.finish();
}

// The whole conversation: what an earlier response left, and the input with its references replaced.
Value::Array items_of(const Value* input, const std::optional<std::string>& previous, ResponseStore* store,
                      Complaint& complaint) {
    Value::Array out;
    if (previous) {
        auto before = store != nullptr ? store->conversation(*previous) : std::nullopt;
        if (!before) {
            complaint.refuse(
                "previous_response_id",
                "previous_response_id names a response that is not kept here (any more); send the "
                "whole conversation as input.");
            return out;
        }
        out = *std::move(before);
    }
    if (is(input, Type::string)) {
        out.push_back(message_of("user", *input));
    } else if (is(input, Type::array)) {
        for (const Value& item : input->as_array()) {
            const bool reference = text_at(item, "type") == "item_reference" ||
                                   (item.find("type") == nullptr && item.find("role") == nullptr);
            auto kept =
                reference && store != nullptr ? store->item(std::string(text_at(item, "id"))) : std::nullopt;
            out.push_back(kept ? *std::move(kept) : item);
        }
    } else {
        complaint.refuse("input", "input must be a text or a list of items.");
    }
    return out;
}

}  // namespace

std::optional<ApiError> read_responses(const Value& body, bool lenient, ResponseStore* store,
                                       GenerationRequest& out) {
    if (auto error = no_object(body)) return error;
    Complaint complaint{.lenient = lenient};
    Fields fields(body, "", complaint);
    out.api = Api::responses;
    read_common(fields, 2, out, complaint);
    read_neutral(fields);
    read_stops(fields, "stop", out, complaint);
    out.max_tokens = static_cast<int>(fields.whole("max_output_tokens", 1, most_tokens).value_or(0));
    if (const auto parallel = fields.toggle("parallel_tool_calls")) out.parallel_tool_calls = *parallel;
    fields.neutral("background", {"false"});
    fields.neutral("truncation", {R"("disabled")"});
    fields.neutral("top_logprobs", {"0"});
    out.store = fields.toggle("store").value_or(true);
    const auto previous = fields.text("previous_response_id");
    fields.never("conversation", "conversations are kept by response only; use previous_response_id");
    fields.never("prompt", "there are no stored prompts");
    fields.never("context_management", "the whole conversation is read");
    fields.ignore({"max_tool_calls", "stream_options"});
    read_text(fields.object("text"), complaint);
    read_reasoning(fields.object("reasoning"), out, complaint);
    read_include(fields.list("include"), out, complaint);
    const auto instructions = fields.text("instructions");
    const Value* input = fields.take("input");
    const Value* tools = fields.list("tools");
    const Value* choice = fields.take("tool_choice");
    fields.finish();
    Conversation conversation(complaint);
    if (instructions && !instructions->empty()) conversation.say("system", string(*instructions));
    out.conversation = items_of(input, previous, store, complaint);
    for (std::size_t i = 0; i < out.conversation.size(); ++i)
        conversation.item(out.conversation[i], fmt::format("input[{}]", i));
    const Value declared = tools_of(tools, complaint);
    if (complaint.error) return complaint.error;
    for (const std::string_view name :
         {"instructions", "tools", "tool_choice", "metadata", "user", "temperature", "top_p",
          "max_output_tokens", "parallel_tool_calls", "reasoning", "previous_response_id"}) {
        if (const Value* given = body.find(name); !is_null(given)) out.echo.set(name, *given);
    }
    read_conversation(Value::array(conversation.take()), declared, out, complaint);
    read_tool_choice(choice, out, complaint);
    return complaint.error;
}

}  // namespace dgemma::server
