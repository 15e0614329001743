// POST /v1/responses: items in place of messages.
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "server/common_fields.h"
#include "server/conversation.h"
#include "server/sealed_thought.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// Puts items together to messages: a thought, what is said and the calls of one turn are one of them.
class Conversation {
  public:
    Conversation(Complaint& complaint, std::vector<std::string>& places)
        : complaint_(complaint), places_(places) {}

    void item(const Value& item, const std::string& where) {
        if (!must_be_object(item, where, complaint_)) return;
        Fields fields(item, where + ".", complaint_);
        const std::string type = fields.text("type").value_or("message");
        if (complaint_.error) return;
        if (type == "message") return message(item, where);
        if (type == "reasoning") return reasoning(item, where);
        if (type == "function_call") return call(item, where);
        if (type == "function_call_output") return output(item, where);
        if (type == "item_reference") {
            return complaint_.refuse(
                where + ".id",
                fmt::format("{} refers to an item that is not kept here (any more); send the item "
                            "itself.",
                            where));
        }
        complaint_.refuse(where + ".type", fmt::format("{}.type is {}; message, reasoning, function_call and "
                                                       "function_call_output are read.",
                                                       where, quote(type)));
    }

    void say(std::string_view role, Value content, std::string place) {
        out_.push_back(message_of(role, std::move(content)));
        places_.push_back(std::move(place));
    }

    Value::Array take() { return std::move(out_); }

  private:
    // The assistant message that goes on with this item.
    Value& assistant(const std::string& where) {
        const bool open = !out_.empty() && text_at(out_.back(), "role") == "assistant";
        if (!open) say("assistant", Value(), where);
        return out_.back();
    }

    // The parts of a message, or of a call's output, in the form of the chat API.
    Value parts(const Value& content, const std::string& where) {
        if (content.is(Type::string)) return content;
        if (!content.is(Type::array)) {
            complaint_.refuse(where, fmt::format("{} must be a text or a list of parts, not {}.", where,
                                                 text::describe(content.type())));
            return {};
        }
        Value::Array out;
        for (std::size_t i = 0; i < content.as_array().size() && !complaint_.error; ++i)
            out.push_back(part(content.as_array()[i], fmt::format("{}[{}]", where, i)));
        return Value::array(std::move(out));
    }

    Value part(const Value& part, const std::string& where) {
        if (!part.is(Type::object)) {
            complaint_.refuse(where,
                              fmt::format("{} must be a part, not {}.", where, text::describe(part.type())));
            return {};
        }
        Fields fields(part, where + ".", complaint_);
        const std::string type = fields.needed_text("type");
        if (type == "input_image") return object({{"type", string("image")}});
        if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal") {
            complaint_.refuse(
                where + ".type",
                fmt::format("{}.type is {}; input_text and output_text are read.", where, quote(type)));
            return {};
        }
        return object({{"type", string("text")},
                       {"text", string(fields.needed_text(type == "refusal" ? "refusal" : "text"))}});
    }

    void message(const Value& item, const std::string& where) {
        Fields fields(item, where + ".", complaint_);
        const std::string role = fields.needed_text("role");
        if (!complaint_.error && role != "user" && role != "assistant" && role != "system" &&
            role != "developer") {
            return complaint_.refuse(
                where + ".role", fmt::format("{}.role must be user, assistant, system or developer, not {}.",
                                             where, quote(role)));
        }
        const Value* content = fields.take("content");
        if (content == nullptr) return complaint_.refuse(where + ".content", where + ".content is missing.");
        Value said = parts(*content, where + ".content");
        // Right behind a thought, the message is what was said after it.
        if (role == "assistant" && !out_.empty() && is_null(out_.back().find("content")) &&
            text_at(out_.back(), "role") == "assistant") {
            out_.back().set("content", std::move(said));
            return;
        }
        say(role, std::move(said), where);
    }

    void reasoning(const Value& item, const std::string& where) {
        Fields fields(item, where + ".", complaint_);
        std::string thought;
        const auto add = [&](std::string_view name) {
            const Value* parts = fields.list(name);
            if (parts == nullptr || !thought.empty()) return;
            for (const Value& part : parts->as_array())
                thought += (thought.empty() ? "" : "\n") + std::string(text_at(part, "text"));
        };
        add("content");
        const std::string sealed = fields.text("encrypted_content").value_or("");
        if (thought.empty()) thought = thought_of(sealed);
        add("summary");
        if (!thought.empty()) {
            say("assistant", Value(), where);
            out_.back().set("reasoning_content", Value::string(std::move(thought)));
        }
    }

    void call(const Value& item, const std::string& where) {
        Fields fields(item, where + ".", complaint_);
        const std::string name = fields.needed_text("name"), id = fields.text("call_id").value_or("");
        if (name.empty()) complaint_.refuse(where + ".name", where + ".name is empty.");
        const std::string given = fields.needed_text("arguments");
        if (complaint_.error) return;
        const std::string place = where + ".arguments";
        Result<Value> arguments = text::parse_json(given, place);
        if (!arguments) return complaint_.refuse(place, api_error_of(arguments.error(), "").message);
        if (!arguments->is(Type::object))
            return complaint_.refuse(place, place + " must be JSON text of an object.");
        Value& message = assistant(where);
        Value::Array calls;
        if (const Value* before = message.find("tool_calls"); is(before, Type::array))
            calls = before->as_array();
        calls.push_back(object({{"id", string(id)},
                                {"type", string("function")},
                                {"function", object({{"name", string(name)}, {"arguments", *arguments}})}}));
        message.set("tool_calls", Value::array(std::move(calls)));
    }

    void output(const Value& item, const std::string& where) {
        Fields fields(item, where + ".", complaint_);
        const std::string id = fields.text("call_id").value_or("");
        const Value* given = fields.take("output");
        if (given == nullptr) return complaint_.refuse(where + ".output", where + ".output is missing.");
        say("tool", parts(*given, where + ".output"), where);
        out_.back().set("tool_call_id", string(id));
    }

    Complaint& complaint_;
    std::vector<std::string>& places_;
    Value::Array out_;
};

// {"type": "function", "name", "parameters"} to the form of the chat API.
Value tools_of(const Value* given, Complaint& complaint) {
    return wrapped_tools(given, complaint, [&](Fields& fields, const std::string& where) {
        const std::string type = fields.needed_text("type");
        if (type != "function") {
            complaint.refuse(
                where + ".type",
                fmt::format("{} must be {{\"type\": \"function\", \"name\": ..., \"parameters\": "
                            "...}}; no other tool can be called.",
                            where));
        }
        Value function = object({{"name", string(fields.needed_name("name"))}});
        if (auto description = fields.text("description"))
            function.set("description", Value::string(*std::move(description)));
        if (const Value* schema = fields.object("parameters")) function.set("parameters", *schema);
        return function;
    });
}

void read_tool_choice(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr || complaint.error) return;
    constexpr std::string_view forms =
        R"(must be "auto", "none", "required" or {"type": "function", "name": ...})";
    if (given->is(Type::string)) {
        const std::string& word = given->as_string();
        if (word == "auto" || word == "none" || word == "required")
            return choose_tool("tool_choice", word, "", out, complaint);
    }
    if (!given->is(Type::object))
        return complaint.refuse("tool_choice", fmt::format("tool_choice {}.", forms));
    Fields fields(*given, "tool_choice.", complaint);
    const std::string type = fields.needed_text("type");
    if (type != "function")
        complaint.refuse("tool_choice.type",
                         fmt::format("tool_choice.type names none: tool_choice {}.", forms));
    choose_tool("tool_choice.name", "named", fields.needed_text("name"), out, complaint);
}

void read_reasoning(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "reasoning.", complaint);
    read_effort(fields, "effort", out, complaint);
    const auto summary = fields.text("summary");
    const auto older = fields.text("generate_summary");
    out.reasoning_summary = summary || older;
    fields.ignore({"context", "mode"});
    fields.finish();
}

void read_include(const Value* given, GenerationRequest& out, Complaint& complaint) {
    if (given == nullptr) return;
    for (std::size_t i = 0; i < given->as_array().size(); ++i) {
        const Value& entry = given->as_array()[i];
        const std::string place = fmt::format("include[{}]", i);
        if (!entry.is(Type::string))
            complaint.refuse(
                place, fmt::format("{} must be a string, not {}.", place, text::describe(entry.type())));
        else if (entry.as_string() == "reasoning.encrypted_content")
            out.reasoning_to_send_back = true;
        else
            complaint.cannot(place, place + " can only be \"reasoning.encrypted_content\" here.");
    }
}

void read_text(const Value* given, Complaint& complaint) {
    if (given == nullptr) return;
    Fields fields(*given, "text.", complaint);
    fields.neutral("format", {R"({"type":"text"})"});
    fields.neutral("verbosity", {R"("medium")"});
    fields.finish();
}

// The whole conversation: what an earlier response left, which are so many items (kept), and the input with
// its references replaced.
Value::Array items_of(const Value* input, const std::optional<std::string>& previous, ResponseStore* store,
                      std::size_t& kept, Complaint& complaint) {
    Value::Array out;
    if (previous) {
        auto before = store != nullptr ? store->conversation(*previous) : std::nullopt;
        if (!before) {
            complaint.refuse(
                "previous_response_id",
                "previous_response_id names a response that is not kept here (any more); send the "
                "whole conversation as input.");
            complaint.error->code = "previous_response_not_found";
            return out;
        }
        out = *std::move(before);
        kept = out.size();
    }
    if (is(input, Type::string)) {
        out.push_back(message_of("user", *input));
    } else if (is(input, Type::array)) {
        for (const Value& item : input->as_array()) {
            const bool reference = text_at(item, "type") == "item_reference" ||
                                   (item.find("type") == nullptr && item.find("role") == nullptr);
            auto known =
                reference && store != nullptr ? store->item(std::string(text_at(item, "id"))) : std::nullopt;
            out.push_back(known ? *std::move(known) : item);
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
    read_max_tokens(fields, {"max_output_tokens"}, out);
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
    if (complaint.error) return complaint.error;
    Conversation conversation(complaint, out.places);
    if (instructions && !instructions->empty())
        conversation.say("system", string(*instructions), "instructions");
    std::size_t kept = 0;
    out.conversation = items_of(input, previous, store, kept, complaint);
    for (std::size_t i = 0; i < out.conversation.size() && !complaint.error; ++i) {
        conversation.item(out.conversation[i],
                          i < kept ? "previous_response_id" : fmt::format("input[{}]", i - kept));
    }
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
