// POST /v1/messages and /v1/messages/count_tokens: Anthropic's form.
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/quote.h"
#include "server/common_fields.h"
#include "server/conversation.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// A text that has to be there.
bool has_text(const Value& block, std::string_view key, const std::string& place, Complaint& complaint) {
    if (is(block.find(key), Type::string)) return true;
    complaint.refuse(fmt::format("{}.{}", place, key),
                     fmt::format("{}.{} is missing or no string.", place, key));
    return false;
}

void refuse_type(const Value& block, const std::string& place, std::string_view known, Complaint& complaint) {
    if (!block.is(Type::object)) {
        return complaint.refuse(
            place, fmt::format("{} must be a block, not {}.", place, text::describe(block.type())));
    }
    Fields fields(block, place + ".", complaint);
    const std::string type = fields.needed_text("type");
    complaint.refuse(place + ".type", fmt::format("{}.type is {}; {} read here.", place, quote(type), known));
}

// The text of `content`, a text or a list of text blocks; complains of other kinds.
std::string block_text(const Value& content, const std::string& where, Complaint& complaint) {
    if (content.is(Type::string)) return content.as_string();
    std::string out;
    if (!content.is(Type::array)) {
        complaint.refuse(where, fmt::format("{} must be a text or a list of blocks, not {}.", where,
                                            text::describe(content.type())));
        return out;
    }
    for (std::size_t i = 0; i < content.as_array().size(); ++i) {
        const Value& block = content.as_array()[i];
        const std::string place = fmt::format("{}[{}]", where, i);
        if (text_at(block, "type") != "text")
            refuse_type(block, place, "only text is", complaint);
        else if (has_text(block, "text", place, complaint))
            out += text_at(block, "text");
    }
    return out;
}

// The conversation in the form of the chat API, and what each message is called in this one.
class Conversation {
  public:
    Conversation(Complaint& complaint, std::vector<std::string>& places)
        : complaint_(complaint), places_(places) {}

    void message(const Value& message, const std::string& where) {
        const Value* content = message.find("content");
        if (!must_be_object(message, where, complaint_)) return;
        Fields fields(message, where + ".", complaint_);
        const std::string role = fields.needed_text("role");
        if (complaint_.error) return;
        if (role != "user" && role != "assistant" && role != "system") {
            return complaint_.refuse(
                where + ".role",
                fmt::format("{}.role must be user or assistant, not {}.", where, quote(role)));
        }
        const std::string place = where + ".content";
        if (is_null(content)) return complaint_.refuse(place, place + " is missing.");
        if (role == "system") return system(*content, place);
        if (content->is(Type::string)) return add(message_of(role, *content), where);
        if (!content->is(Type::array)) {
            return complaint_.refuse(place, fmt::format("{} must be a text or a list of blocks, not {}.",
                                                        place, text::describe(content->type())));
        }
        role == "user" ? user(content->as_array(), where) : assistant(content->as_array(), where);
    }

    void system(const Value& content, const std::string& where) {
        std::string text = block_text(content, where, complaint_);
        if (!text.empty()) add(message_of("system", Value::string(std::move(text))), where);
    }

    Value take() { return Value::array(std::move(out_)); }

  private:
    void add(Value message, std::string place) {
        out_.push_back(std::move(message));
        places_.push_back(std::move(place));
    }

    // Results first, as the template wants them right behind the calls, then what the user says.
    void user(const Value::Array& blocks, const std::string& where) {
        Value::Array said;
        for (std::size_t i = 0; i < blocks.size() && !complaint_.error; ++i) {
            const Value& block = blocks[i];
            const std::string place = fmt::format("{}.content[{}]", where, i);
            const std::string_view type = text_at(block, "type");
            if (type == "tool_result") {
                if (!said.empty()) {
                    return complaint_.refuse(
                        place, fmt::format("{} must come before the text of its message.", place));
                }
                result(block, place);
            } else if (type == "text") {
                if (has_text(block, "text", place, complaint_))
                    said.push_back(object({{"type", string("text")}, {"text", *block.find("text")}}));
            } else if (type == "image") {
                said.push_back(object({{"type", string("image")}}));
            } else {
                refuse_type(block, place, "text, image and tool_result are", complaint_);
            }
        }
        // Nothing said is something: the turn is the model's after it.
        if (!said.empty() || blocks.empty()) add(message_of("user", Value::array(std::move(said))), where);
    }

    void result(const Value& block, const std::string& place) {
        Fields fields(block, place + ".", complaint_);
        const std::string id = fields.text("tool_use_id").value_or("");
        const bool failed = fields.toggle("is_error").value_or(false);
        const Value* inner = fields.take("content");
        std::string text = inner == nullptr ? "" : block_text(*inner, place + ".content", complaint_);
        // The model's format has no mark for it, so the text says it.
        if (failed) text.insert(0, "Error: ");
        Value message = message_of("tool", Value::string(std::move(text)));
        message.set("tool_call_id", string(id));
        add(std::move(message), place);
    }

    void assistant(const Value::Array& blocks, const std::string& where) {
        std::string said, thought;
        Value::Array calls;
        for (std::size_t i = 0; i < blocks.size() && !complaint_.error; ++i) {
            const Value& block = blocks[i];
            const std::string_view type = text_at(block, "type");
            const std::string place = fmt::format("{}.content[{}]", where, i);
            if (type == "text") {
                if (has_text(block, "text", place, complaint_)) said += text_at(block, "text");
            } else if (type == "thinking") {
                if (has_text(block, "thinking", place, complaint_))
                    thought += (thought.empty() ? "" : "\n") + std::string(text_at(block, "thinking"));
            } else if (type == "tool_use") {
                calls.push_back(call(block, place));
            } else if (type != "redacted_thinking") {  // which nobody here can read
                refuse_type(block, place, "text, thinking and tool_use are", complaint_);
            }
        }
        Value message = message_of("assistant", said.empty() ? Value() : Value::string(std::move(said)));
        if (!thought.empty()) message.set("reasoning_content", Value::string(std::move(thought)));
        if (!calls.empty()) message.set("tool_calls", Value::array(std::move(calls)));
        add(std::move(message), where);
    }

    Value call(const Value& block, const std::string& place) {
        Fields fields(block, place + ".", complaint_);
        const std::string id = fields.text("id").value_or(""), name = fields.needed_name("name");
        const Value* input = fields.object("input");
        if (input == nullptr)
            complaint_.refuse(place + ".input", place + ".input is missing; it must be an object.");
        return object({{"id", string(id)},
                       {"type", string("function")},
                       {"function", object({{"name", string(name)},
                                            {"arguments", input != nullptr ? *input : Value()}})}});
    }

    Complaint& complaint_;
    std::vector<std::string>& places_;
    Value::Array out_;
};

Value messages_of(const Value& given, const Value* system, std::vector<std::string>& places,
                  Complaint& complaint) {
    Conversation conversation(complaint, places);
    if (system != nullptr) conversation.system(*system, "system");
    const Value::Array& messages = given.as_array();
    for (std::size_t i = 0; i < messages.size() && !complaint.error; ++i)
        conversation.message(messages[i], fmt::format("messages[{}]", i));
    // Results that a text follows at once give two messages, and an assistant's last word cannot be gone on
    // with: the template closes its turn.
    if (!messages.empty() && text_at(messages.back(), "role") == "assistant") {
        complaint.cannot(
            "messages",
            "messages ends with one of the assistant, and a reply cannot be begun for the model; let "
            "the last one be the user's.");
    }
    return conversation.take();
}

Value tools_of(const Value* given, Complaint& complaint) {
    return wrapped_tools(given, complaint, [&](Fields& fields, const std::string& where) {
        const std::string type = fields.text("type").value_or("custom");
        if (type != "custom") {
            complaint.refuse(where + ".type",
                             fmt::format("{}.type is {}, a tool of another service; only tools of your own "
                                         "are called.",
                                         where, quote(type)));
        }
        const std::string name = fields.needed_name("name");
        const std::string description = fields.text("description").value_or("");
        const Value* schema = fields.object("input_schema");
        if (schema == nullptr)
            complaint.refuse(where + ".input_schema",
                             where + ".input_schema is missing; it must be an object.");
        return object({{"name", string(name)},
                       {"description", string(description)},
                       {"parameters", schema != nullptr ? *schema : Value()}});
    });
}

void read_thinking(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "thinking.", complaint);
    const std::string type = fields.needed_text("type");
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
    const std::string type = fields.needed_text("type");
    const std::string name = type == "tool" ? fields.needed_text("name") : fields.text("name").value_or("");
    if (fields.toggle("disable_parallel_tool_use").value_or(false)) out.parallel_tool_calls = false;
    fields.finish();
    if (type == "tool") return choose_tool("tool_choice.name", type, name, out, complaint);
    if (type == "auto" || type == "none" || type == "any")
        return choose_tool("tool_choice", type, name, out, complaint);
    complaint.refuse("tool_choice.type",
                     fmt::format("tool_choice.type must be auto, any, none or tool, not {}.", quote(type)));
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
    read_max_tokens(fields, {"max_tokens"}, out);
    if (out.max_tokens == 0 && !count_only)
        complaint.refuse("max_tokens", "max_tokens is missing; say how long the reply may be.");
    read_thinking(fields.object("thinking"), out, complaint);
    const Value* messages = fields.list("messages");
    const Value* system = fields.take("system");
    const Value* tools = fields.list("tools");
    const Value* choice = fields.object("tool_choice");
    fields.finish();
    if (messages == nullptr || messages->as_array().empty())
        complaint.refuse("messages", "messages is missing or empty; send a list of messages.");
    if (complaint.error) return complaint.error;
    const Value converted = messages_of(*messages, system, out.places, complaint);
    const Value declared = tools_of(tools, complaint);
    if (complaint.error) return complaint.error;
    read_conversation(converted, declared, out, complaint);
    read_tool_choice(choice, out, complaint);
    return complaint.error;
}

}  // namespace dgemma::server
