#include "server/conversation.h"

#include <charconv>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "text/messages.h"
#include "text/tool_call.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// "messages[2].content" of "messages[2].content is a number: ..."; empty where a sentence begins with none.
std::string_view leading_path(std::string_view sentence) {
    std::size_t end = sentence.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789[].");
    if (end == std::string_view::npos) end = sentence.size();
    while (end > 0 && sentence[end - 1] == '.') --end;
    const std::string_view path = sentence.substr(0, end);
    return path.starts_with("messages[") || path.starts_with("tools[") ? path : std::string_view();
}

// The number and the rest of "messages[2].content"; where there is none, nothing.
std::optional<std::size_t> index_in(std::string_view path, std::string_view& rest) {
    const std::size_t open = path.find('[');
    std::size_t index = 0;
    const auto [end, problem] = std::from_chars(path.data() + open + 1, path.data() + path.size(), index);
    if (problem != std::errc() || end == path.data() + path.size() || *end != ']') return std::nullopt;
    rest = path.substr(static_cast<std::size_t>(end - path.data()) + 1);
    return index;
}

// A path of the chat API as the request's own API has it.
std::string own_path(const GenerationRequest& request, std::string_view path) {
    std::string_view rest;
    const auto index = index_in(path, rest);
    if (!index) return std::string(path);
    if (path.starts_with("messages[")) return place_of(request, *index) + std::string(rest);
    const bool flat = request.api == Api::messages || request.api == Api::responses;
    constexpr std::string_view wrapper = ".function", schema = ".parameters";
    if (flat && rest.starts_with(wrapper)) rest.remove_prefix(wrapper.size());
    std::string out = fmt::format("tools[{}]", *index);
    if (request.api == Api::messages && rest.starts_with(schema)) {
        out += ".input_schema";
        rest.remove_prefix(schema.size());
    }
    return out + std::string(rest);
}

std::string_view id_field(Api api) {
    return api == Api::messages ? "tool_use_id" : api == Api::responses ? "call_id" : "tool_call_id";
}

// The template drops a result that follows no call without a word, and of two for one call it would show
// both, so a client would wonder. Ids need to differ within a message only: some clients count anew in each.
void check_results(const Value& messages, const GenerationRequest& request, Complaint& complaint) {
    std::map<std::string_view, int> open;  // calls without a result yet, by their id; "": of any id
    for (std::size_t i = 0; i < messages.as_array().size(); ++i) {
        const Value& message = messages.as_array()[i];
        if (text_at(message, "role") != "tool") {
            open.clear();
            const Value* calls = message.find("tool_calls");
            if (!is(calls, Type::array)) continue;
            for (const Value& call : calls->as_array()) {
                const std::string_view id = text_at(call, "id");
                ++open[id];
                if (!id.empty()) ++open[""];
            }
            continue;
        }
        const std::string_view id = text_at(message, "tool_call_id");
        const auto found = open.find(id);
        std::string field = fmt::format("{}.{}", place_of(request, i), id_field(request.api));
        const std::string shown = quote(id);
        if (found == open.end()) {
            std::string said = fmt::format(
                "{} is {}, and the assistant message before it makes no such call; "
                "results follow directly after the calls.",
                field, shown);
            return complaint.refuse(std::move(field), std::move(said));
        }
        if (--found->second < 0) {
            std::string said =
                fmt::format("{} is {}, which has its result already; send one for each call.", field, shown);
            return complaint.refuse(std::move(field), std::move(said));
        }
    }
}

// A call says which tool by its name alone.
void check_names(const Value& tools, const GenerationRequest& request, Complaint& complaint) {
    if (!tools.is(Type::array)) return;
    std::map<std::string_view, std::size_t> seen;
    for (std::size_t i = 0; i < tools.as_array().size(); ++i) {
        const std::string_view name = text_at(*tools.as_array()[i].find("function"), "name");
        const auto [first, fresh] = seen.emplace(name, i);
        const bool sayable = text::can_be_called(name);
        if (fresh && sayable) continue;
        std::string field = own_path(request, fmt::format("tools[{}].function.name", i));
        std::string message =
            !sayable
                ? fmt::format(
                      "{} is {}, which no call can say; choose a name without braces, "
                      "and without spaces around it.",
                      field, quote(name))
                : fmt::format("{} is {}, and so is the name of tools[{}]; give each tool a name of its own.",
                              field, quote(name), first->second);
        return complaint.refuse(std::move(field), std::move(message));
    }
}

}  // namespace

Value message_of(std::string_view role, Value content) {
    Value::Object members;
    members.push_back({"role", string(role)});
    members.push_back({"content", std::move(content)});
    return Value::object(std::move(members));
}

Value wrapped_tools(const Value* given, Complaint& complaint,
                    const std::function<Value(Fields& tool, const std::string& where)>& function_of) {
    if (given == nullptr) return {};
    Value::Array out;
    for (std::size_t i = 0; i < given->as_array().size() && !complaint.error; ++i) {
        const Value& tool = given->as_array()[i];
        const std::string where = fmt::format("tools[{}]", i);
        if (!must_be_object(tool, where, complaint)) break;
        Fields fields(tool, where + ".", complaint);
        out.push_back(object({{"type", string("function")}, {"function", function_of(fields, where)}}));
    }
    return Value::array(std::move(out));
}

std::string place_of(const GenerationRequest& request, std::size_t i) {
    return i < request.places.size() ? request.places[i] : fmt::format("messages[{}]", i);
}

std::string_view conversation_field(Api api) {
    return api == Api::completions ? "prompt" : api == Api::responses ? "input" : "messages";
}

ApiError conversation_error(const GenerationRequest& request, const Error& error) {
    ApiError out = api_error_of(error, conversation_field(request.api));
    if (out.field.empty()) return out;
    if (const std::string_view path = leading_path(error.message); !path.empty()) {
        out.field = own_path(request, path);
        out.message.replace(0, path.size(), out.field);
    } else if (error.message.starts_with("`tools`")) {
        out.field = "tools";
    } else if (constexpr std::string_view all = "`messages`"; error.message.starts_with(all)) {
        out.message.replace(0, all.size(), out.field);
    }
    return out;
}

void read_conversation(const Value& messages, const Value& tools, GenerationRequest& out,
                       Complaint& complaint) {
    if (complaint.error) return;
    Result<text::ChatInput> input = text::chat_input(messages, tools);
    if (!input) {
        ApiError error = conversation_error(out, input.error());
        return complaint.refuse(std::move(error.field), std::move(error.message));
    }
    check_results(messages, out, complaint);
    check_names(input->tools, out, complaint);
    if (complaint.error) return;
    out.chat.messages = std::move(input->messages);
    out.chat.tools = std::move(input->tools);
    if (is(&out.chat.tools, Type::array) && out.chat.tools.as_array().empty()) out.chat.tools = Value();
    if (!out.diffusion.exact.value_or(false)) text::drop_content_after_results(out.chat);
}

void choose_tool(std::string_view field, std::string_view kind, std::string_view name, GenerationRequest& out,
                 Complaint& complaint) {
    if (complaint.error) return;
    const bool there_are = out.chat.tools.is(Type::array) && !out.chat.tools.as_array().empty();
    if (kind == "auto" || kind == "none") {
        out.tool_choice.kind = kind == "auto" ? ToolChoice::Kind::automatic : ToolChoice::Kind::none;
        // What the model does not know of it will not call.
        if (kind == "none") out.chat.tools = Value();
        return;
    }
    if (!there_are) {
        return complaint.refuse("tool_choice",
                                "tool_choice asks for a tool call, and there are no tools; declare them in "
                                "tools.");
    }
    if (kind == "required" || kind == "any") {
        out.tool_choice.kind = ToolChoice::Kind::required;
        return;
    }
    for (const Value& tool : out.chat.tools.as_array()) {
        const Value* function = tool.find("function");
        if (function != nullptr && text_at(*function, "name") == name) {
            out.tool_choice = {ToolChoice::Kind::named, std::string(name)};
            return;
        }
    }
    complaint.refuse(std::string(field),
                     fmt::format("{} is the tool {}, which tools does not declare.", field, quote(name)));
}

}  // namespace dgemma::server
