#include "text/messages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "text/template_value.h"
#include "text/utf8.h"

namespace dgemma::text {

namespace {

using Type = Value::Type;

Error invalid(std::string message) { return Error{ErrorKind::invalid, std::move(message)}; }

std::string_view kind_of(TemplateValue value) { return value ? describe(value->type()) : "missing"; }

std::string_view name_kind(const Value& function) {
    const Value* name = function.find("name");
    return is_type(name, Type::string) ? "empty" : kind_of(name);
}

Status check_text_or_null(const Value& object, std::string_view key, const std::string& where) {
    const Value* value = object.find(key);
    if (!value || value->is(Type::null) || value->is(Type::string)) return {};
    return invalid(fmt::format("{}.{} is {}: it must be a string", where, key, describe(value->type())));
}

Status check_part(const Value& part, const std::string& where) {
    const Value* type = part.find("type");
    if (!is_type(type, Type::string))
        return invalid(fmt::format("{}.type is {}: write {{\"type\": \"text\", \"text\": \"...\"}}", where,
                                   kind_of(type)));
    const std::string& name = type->as_string();
    if (name == "text") {
        if (is_type(part.find("text"), Type::string)) return {};
        return invalid(
            fmt::format("{}.text is {}: a text part needs a string", where, kind_of(part.find("text"))));
    }
    if (name == "image" || name == "image_url" || name == "video") return {};
    if (name == "audio" || name == "input_audio")
        return invalid(
            fmt::format("{} is audio, which DiffusionGemma cannot hear: send its transcript as text", where));
    return invalid(fmt::format("{}.type is {}, which is unknown: use text, image, image_url or video", where,
                               quote(name)));
}

Status check_parts(const Value& parts, const std::string& where) {
    for (std::size_t i = 0; i < parts.as_array().size(); ++i)
        DGEMMA_CHECK(check_part(parts.as_array()[i], fmt::format("{}[{}]", where, i)));
    return {};
}

Status adapt_content(Value& message, const std::string& role, const std::string& where) {
    const Value* content = message.find("content");
    if (role == "tool") {
        if (is_type(content, Type::object)) message.set("content", Value::string(to_json(*content)));
        if (is_type(content, Type::array)) return check_parts(*content, where + ".content");
        return {};
    }
    if (!content || content->is(Type::null)) {
        if (role == "assistant") return {};
        return invalid(fmt::format("{}.content is missing: give it a text or a list of parts", where));
    }
    if (content->is(Type::string)) return {};
    if (content->is(Type::array)) return check_parts(*content, where + ".content");
    return invalid(fmt::format("{}.content is {}: it must be a text or a list of parts", where,
                               describe(content->type())));
}

// One call of an assistant message, with its arguments as an object.
Result<Value> adapt_call(Value call, const std::string& where) {
    const Value* function = call.find("function");
    if (!is_type(function, Type::object))
        return invalid(
            fmt::format("{}.function is {}: write {{\"function\": {{\"name\": ..., \"arguments\": ...}}}}",
                        where, kind_of(function)));
    if (!is_type(function->find("name"), Type::string) || function->find("name")->as_string().empty())
        return invalid(fmt::format("{}.function.name is {}: give it a string", where, name_kind(*function)));
    DGEMMA_CHECK(check_text_or_null(call, "id", where));

    const Value* arguments = function->find("arguments");
    Value parsed;
    if (is_type(arguments, Type::string)) {
        DGEMMA_TRY(parsed, parse_json(arguments->as_string(), fmt::format("{}.function.arguments", where)));
    } else if (arguments) {
        parsed = *arguments;
    }
    // Null, which the template takes for no arguments, only if it is null already: the text "null" is none.
    const bool is_null = is_type(arguments, Type::null);
    if (!is_null && !parsed.is(Type::object)) {
        return invalid(fmt::format("{}.function.arguments is {}: it must be an object, or JSON text of one",
                                   where, arguments ? describe(parsed.type()) : "missing"));
    }
    Value adapted = *function;
    adapted.set("arguments", std::move(parsed));
    call.set("function", std::move(adapted));
    return call;
}

Result<Value> adapt_message(Value message, std::size_t index) {
    const std::string where = fmt::format("messages[{}]", index);
    if (!message.is(Type::object))
        return invalid(fmt::format("{} is {}: a message is an object with `role` and `content`", where,
                                   describe(message.type())));
    if (!is_type(message.find("role"), Type::string))
        return invalid(fmt::format("{}.role is {}: use system, developer, user, assistant or tool", where,
                                   kind_of(message.find("role"))));
    const std::string role = message.find("role")->as_string();
    constexpr std::array<std::string_view, 5> roles = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(roles.begin(), roles.end(), role) == roles.end()) {
        return invalid(
            fmt::format("{}.role is {}, which is unknown: use system, developer, user, assistant or tool",
                        where, quote(role)));
    }
    DGEMMA_CHECK(adapt_content(message, role, where));
    for (const std::string_view key : {"reasoning", "reasoning_content", "name", "tool_call_id"})
        DGEMMA_CHECK(check_text_or_null(message, key, where));

    const Value* calls = message.find("tool_calls");
    if (!calls || calls->is(Type::null)) return message;
    if (!calls->is(Type::array))
        return invalid(fmt::format("{}.tool_calls is {}: it must be a list", where, describe(calls->type())));
    Value::Array adapted;
    for (std::size_t i = 0; i < calls->as_array().size(); ++i) {
        DGEMMA_TRY(Value call, adapt_call(calls->as_array()[i], fmt::format("{}.tool_calls[{}]", where, i)));
        adapted.push_back(std::move(call));
    }
    message.set("tool_calls", Value::array(std::move(adapted)));
    return message;
}

Result<Value> adapt_tool(Value tool, std::size_t index) {
    const std::string where = fmt::format("tools[{}]", index);
    const Value* function = tool.find("function");
    if (!is_type(function, Type::object)) {
        const bool flat = is_type(tool.find("name"), Type::string);
        return invalid(
            fmt::format("{}: wrap it as {{\"type\": \"function\", \"function\": {{\"name\": ..., "
                        "\"description\": ..., \"parameters\": ...}}}}",
                        flat ? where + " is a flat declaration"
                             : fmt::format("{}.function is {}", where, kind_of(function))));
    }
    if (!is_type(function->find("name"), Type::string) || function->find("name")->as_string().empty())
        return invalid(fmt::format("{}.function.name is {}: give it a string", where, name_kind(*function)));
    DGEMMA_CHECK(check_text_or_null(*function, "description", where + ".function"));
    const Value* parameters = function->find("parameters");
    if (parameters && !parameters->is(Type::null) && !parameters->is(Type::object)) {
        return invalid(fmt::format("{}.function.parameters is {}: it must be a JSON schema object", where,
                                   describe(parameters->type())));
    }
    // The template would print a null description as the word None.
    if (is_type(function->find("description"), Type::null)) {
        Value adapted = *function;
        adapted.remove("description");
        tool.set("function", std::move(adapted));
    }
    return tool;
}

}  // namespace

Result<ChatInput> chat_input(const Value& messages, const Value& tools) {
    if (!messages.is(Type::array))
        return invalid(
            fmt::format("`messages` is {}: it must be a list of messages", describe(messages.type())));
    if (messages.as_array().empty()) return invalid("`messages` is empty: send at least one message");
    Value::Array adapted_messages;
    for (std::size_t i = 0; i < messages.as_array().size(); ++i) {
        DGEMMA_TRY(Value message, adapt_message(messages.as_array()[i], i));
        adapted_messages.push_back(std::move(message));
    }
    ChatInput input;
    input.messages = Value::array(std::move(adapted_messages));
    if (tools.is(Type::null)) return input;

    if (!tools.is(Type::array))
        return invalid(
            fmt::format("`tools` is {}: it must be a list of declarations", describe(tools.type())));
    Value::Array adapted_tools;
    for (std::size_t i = 0; i < tools.as_array().size(); ++i) {
        DGEMMA_TRY(Value tool, adapt_tool(tools.as_array()[i], i));
        adapted_tools.push_back(std::move(tool));
    }
    input.tools = Value::array(std::move(adapted_tools));
    return input;
}

Result<ChatInput> chat_input_from_json(std::string_view messages_json, std::string_view tools_json) {
    DGEMMA_TRY(Value messages, parse_json(messages_json, "the list of messages"));
    Value tools;
    if (messages.is(Type::object)) {
        const Value* list = messages.find("messages");
        if (!list) return invalid("the list of messages is an object without `messages`: give a list");
        if (const Value* own = messages.find("tools")) tools = *own;
        messages = Value(*list);
    }
    if (!tools_json.empty()) {
        DGEMMA_TRY(tools, parse_json(tools_json, "the list of tools"));
    }
    return chat_input(messages, tools);
}

ChatInput chat_input_from_prompt(std::string_view system, std::string_view user, bool thinking) {
    const auto message = [](std::string_view role, std::string_view content) {
        return Value::object(
            {{"role", Value::string(std::string(role))}, {"content", Value::string(sanitize_utf8(content))}});
    };
    Value::Array messages;
    if (!system.empty()) messages.push_back(message("system", system));
    messages.push_back(message("user", user));
    ChatInput input;
    input.messages = Value::array(std::move(messages));
    if (thinking) input.enable_thinking = true;
    return input;
}

void drop_content_after_results(ChatInput& input) {
    if (!input.messages.is(Type::array)) return;
    Value::Array messages = input.messages.as_array();
    std::size_t last = messages.size();
    while (last > 0 && is_string(messages[last - 1].find("role"), "tool")) --last;
    if (last == 0 || last == messages.size()) return;  // no results at the end
    Value& message = messages[last - 1];
    if (!is_string(message.find("role"), "assistant") || !is_true(message.find("tool_calls"))) return;
    message.remove("content");
    input.messages = Value::array(std::move(messages));
}

}  // namespace dgemma::text
