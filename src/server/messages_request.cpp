// POST /v1/messages and /v1/messages/count_tokens: Anthropic's form.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "server/common_fields.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// "messages" of "messages[1].content[0]".
std::string field_of(const std::string& where) { return where.substr(0, where.find('[')); }

// The text of a text block, or of a list of them; complains of other kinds.
std::string block_text(const Value& content, const std::string& where, Complaint& complaint) {
    if (content.is(Type::string)) return content.as_string();
    std::string out;
    if (!content.is(Type::array)) {
        complaint.refuse(field_of(where), fmt::format("{} must be a text or a list of blocks, not {}.", where,
                                                      text::describe(content.type())));
        return out;
    }
    for (const Value& block : content.as_array()) {
        if (text_at(block, "type") == "text" && is(block.find("text"), Type::string)) {
            out += text_at(block, "text");
            continue;
        }
        complaint.refuse(field_of(where),
                         fmt::format("{} holds a block of type {}, and only text is read here.", where,
                                     text::json_quoted(text_at(block, "type").substr(0, 60))));
    }
    return out;
}

// One user message: results first, as the template wants them right behind the calls, then what the user
// says.
void add_user(const Value& content, const std::string& where, Value::Array& out, Complaint& complaint) {
    if (content.is(Type::string)) {
        out.push_back(message_of("user", content));
        return;
    }
    if (!content.is(Type::array)) {
        return complaint.refuse(field_of(where),
                                fmt::format("{}.content must be a text or a list of blocks.", where));
    }
    Value::Array said;
    for (std::size_t i = 0; i < content.as_array().size(); ++i) {
        const Value& block = content.as_array()[i];
        const std::string place = fmt::format("{}.content[{}]", where, i);
        const std::string_view type = text_at(block, "type");
        if (type == "tool_result") {
            const Value* inner = block.find("content");
            std::string result = is_null(inner) ? "" : block_text(*inner, place + ".content", complaint);
            const Value* failed = block.find("is_error");
            // The model's format has no mark for it, so the text says it.
            if (is(failed, Type::boolean) && failed->as_boolean()) result.insert(0, "Error: ");
            Value message = message_of("tool", Value::string(std::move(result)));
            message.set("tool_call_id", string(text_at(block, "tool_use_id")));
            if (!said.empty())
                return complaint.refuse(field_of(where),
                                        fmt::format("{} must come before the text of its message.", place));
            out.push_back(std::move(message));
        } else if (type == "text" && is(block.find("text"), Type::string)) {
            said.push_back(object({{"type", string("text")}, {"text", *block.find("text")}}));
        } else if (type == "image") {
            said.push_back(object({{"type", string("image")}}));
        } else {
            return complaint.refuse(field_of(where),
                                    fmt::format("{} has the type {}; text, image and tool_result are read.",
                                                place, text::json_quoted(type.substr(0, 60))));
        }
    }
    if (!said.empty()) out.push_back(message_of("user", Value::array(std::move(said))));
}

void add_assistant(const Value& content, const std::string& where, Value::Array& out, Complaint& complaint) {
    if (content.is(Type::string)) {
        out.push_back(message_of("assistant", content));
        return;
    }
    if (!content.is(Type::array))
        return complaint.refuse(field_of(where),
                                fmt::format("{}.content must be a text or a list of blocks.", where));
    std::string said, thought;
    Value::Array calls;
    for (std::size_t i = 0; i < content.as_array().size(); ++i) {
        const Value& block = content.as_array()[i];
        const std::string_view type = text_at(block, "type");
        const std::string place = fmt::format("{}.content[{}]", where, i);
        if (type == "text" && is(block.find("text"), Type::string)) {
            said += text_at(block, "text");
        } else if (type == "thinking" && is(block.find("thinking"), Type::string)) {
            thought += (thought.empty() ? "" : "\n") + std::string(text_at(block, "thinking"));
        } else if (type == "redacted_thinking") {
            continue;  // nobody here can read it
        } else if (type == "tool_use") {
            if (!is(block.find("input"), Type::object) || text_at(block, "name").empty()) {
                return complaint.refuse(field_of(where),
                                        fmt::format("{} needs a name and an object as its input.", place));
            }
            calls.push_back(object({{"id", string(text_at(block, "id"))},
                                    {"type", string("function")},
                                    {"function", object({{"name", string(text_at(block, "name"))},
                                                         {"arguments", *block.find("input")}})}}));
        } else {
            return complaint.refuse(field_of(where),
                                    fmt::format("{} has the type {}; text, thinking and tool_use are read.",
                                                place, text::json_quoted(type.substr(0, 60))));
        }
    }
    Value message = message_of("assistant", said.empty() ? Value() : Value::string(std::move(said)));
    if (!thought.empty()) message.set("reasoning_content", Value::string(std::move(thought)));
    if (!calls.empty()) message.set("tool_calls", Value::array(std::move(calls)));
    out.push_back(std::move(message));
}

Value messages_of(const Value& given, const Value* system, Complaint& complaint) {
    Value::Array out;
    if (system != nullptr) {
        std::string text = block_text(*system, "system", complaint);
        if (!text.empty()) out.push_back(message_of("system", Value::string(std::move(text))));
    }
    for (std::size_t i = 0; i < given.as_array().size(); ++i) {
        const Value& message = given.as_array()[i];
        const std::string where = fmt::format("messages[{}]", i);
        const std::string_view role = text_at(message, "role");
        const Value* content = message.find("content");
        if (is_null(content)) {
            complaint.refuse("messages", fmt::format("{} needs a role and content.", where));
        } else if (role == "user") {
            add_user(*content, where, out, complaint);
        } else if (role == "assistant") {
            add_assistant(*content, where, out, complaint);
        } else if (role == "system") {
            out.push_back(message_of("system", string(block_text(*content, where, complaint))));
        } else {
            complaint.refuse("messages", fmt::format("{}.role must be user or assistant, not {}.", where,
                                                     text::json_quoted(role.substr(0, 60))));
        }
        // Results that a text follows at once give two messages, and an assistant's last word cannot be gone
        // on with: the template closes its turn.
        if (complaint.error) return {};
    }
    if (!given.as_array().empty() && text_at(given.as_array().back(), "role") == "assistant") {
        complaint.cannot(
            "messages",
            "messages ends with one of the assistant, and a reply cannot be begun for the model; let "
            "the last one be the user's.");
    }
    return Value::array(std::move(out));
}

Value tools_of(const Value* given, Complaint& complaint) {
    if (given == nullptr) return {};
    Value::Array out;
    for (std::size_t i = 0; i < given->as_array().size(); ++i) {
        const Value& tool = given->as_array()[i];
        const std::string where = fmt::format("tools[{}]", i);
        const std::string_view type = text_at(tool, "type");
        if (!type.empty() && type != "custom") {
            complaint.refuse("tools",
                             fmt::format("{} has the type {}, a tool of another service; only tools of your "
                                         "own are called.",
                                         where, text::json_quoted(type.substr(0, 60))));
            return {};
        }
        if (!is(tool.find("input_schema"), Type::object) || text_at(tool, "name").empty()) {
            complaint.refuse("tools",
                             fmt::format("{} needs a name and an object as its input_schema.", where));
            return {};
        }
        out.push_back(object({{"type", string("function")},
                              {"function", object({{"name", string(text_at(tool, "name"))},
                                                   {"description", string(text_at(tool, "description"))},
                                                   {"parameters", *tool.find("input_schema")}})}}));
    }
    return Value::array(std::move(out));
}

void read_thinking(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "thinking.", complaint);
    const std::string type = fields.text("type").value_or("");
    // How long a thought may be is not something that the model can be told: the budget is accepted.
    fields.ignore({"budget_tokens", "display"});
    fields.finish();
    if (type != "enabled" && type != "disabled" && type != "adaptive")
        return complaint.refuse("thinking.type", "thinking.type must be enabled, adaptive or disabled.");
    out.chat.enable_thinking = type != "disabled";
}

void read_tool_choice(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr || complaint.error) return;
    Fields fields(*given, "tool_choice.", complaint);
    const std::string type = fields.text("type").value_or("");
    const std::string name = fields.text("name").value_or("");
    if (fields.toggle("disable_parallel_tool_use").value_or(false)) out.parallel_tool_calls = false;
    fields.finish();
    if (type == "auto" || type == "none" || type == "any" || (type == "tool" && !name.empty()))
        return choose_tool("tool_choice", type, name, out, complaint);
    complaint.refuse("tool_choice", "tool_choice.type must be auto, any, none, or tool with a name.");
}

}  // namespace

std::optional<ApiError> read_messages(const Value& body, bool lenient, bool count_only,
                                      GenerationRequest& out) {
    if (auto error = no_object(body)) return error;
    Complaint complaint{.lenient = lenient};
    Fields fields(body, "", complaint);
    out.api = Api::messages;
    read_common(fields, 2, out, complaint);
    read_stops(fields, "stop_sequences", out, complaint);
    fields.ignore({"metadata", "cache_control", "inference_geo", "speed"});
    fields.neutral("service_tier", {R"("auto")", R"("standard_only")"});
    fields.never("container", "there are no containers");
    fields.never("mcp_servers", "tools are called by the client");
    fields.never("context_management", "the whole conversation is read");
    if (const Value* config = fields.object("output_config")) {
        Fields inner(*config, "output_config.", complaint);
        inner.ignore({"effort"});
        inner.never("format", "the form of the answer is not constrained");
        inner.finish();
    }
    const auto most = fields.whole("max_tokens", 1, most_tokens);
    if (!most && !count_only)
        complaint.refuse("max_tokens", "max_tokens is missing; say how long the reply may be.");
    out.max_tokens = static_cast<int>(most.value_or(0));
    read_thinking(fields.object("thinking"), out, complaint);
    const Value* messages = fields.list("messages");
    const Value* system = fields.take("system");
    const Value* tools = fields.list("tools");
    const Value* choice = fields.object("tool_choice");
    fields.finish();
    if (messages == nullptr) complaint.refuse("messages", "messages is missing; send a list of messages.");
    if (complaint.error) return complaint.error;
    const Value converted = messages_of(*messages, system, complaint);
    const Value declared = tools_of(tools, complaint);
    if (complaint.error) return complaint.error;
    read_conversation(converted, declared, out, complaint);
    read_tool_choice(choice, out, complaint);
    return complaint.error;
}

}  // namespace dgemma::server
