#include "server/common_fields.h"

#include <utility>

#include <fmt/format.h>

#include "text/messages.h"
#include "text/template_value.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// With the most probable token taken everywhere, no filter of less probable ones changes anything.
void read_filters(Fields& fields, bool greedy, GenerationRequest& out) {
    const auto top_p = fields.real("top_p", 0, 1);
    if (top_p && *top_p < 1 && !greedy) {
        fields.neutral("top_p", {"1"});
    }
    // 0 and -1 are how some clients say "all".
    const Value* top_k = fields.take("top_k");
    if (is(top_k, Type::integer) && (top_k->as_integer().digits == "0" || top_k->as_integer().digits == "-1"))
        return;
    const auto kept = fields.whole("top_k", 1, most_tokens);
    if (kept == 1)
        out.temperature = 0;
    else if (kept && !greedy)
        fields.neutral("top_k", {"0", "1"});
}

void read_diffusion(const Value& object, GenerationRequest& out, Complaint& complaint) {
    Fields fields(object, "diffusion.", complaint);
    DiffusionFields& to = out.diffusion;
    if (const auto steps = fields.whole("steps", 1, 10000)) to.steps = static_cast<int>(*steps);
    if (const auto bound = fields.real("entropy_bound", 0, 1e6))
        to.entropy_bound = static_cast<float>(*bound);
    if (const auto threshold = fields.real("confidence_threshold", 0, 1e6))
        to.confidence_threshold = static_cast<float>(*threshold);
    if (const auto length = fields.whole("canvas_length", 1, 65536))
        to.canvas_length = static_cast<int>(*length);
    if (const auto name = fields.text("sampler")) {
        to.sampler = diffusion::sampler_named(*name);
        if (!to.sampler) {
            complaint.refuse("diffusion.sampler",
                             "diffusion.sampler must be \"entropy-bound\" or \"confidence-threshold\".");
        }
    }
    to.exact = fields.toggle("exact");
    to.drafts = fields.toggle("drafts").value_or(false);
    fields.finish();
}

void read_template_switches(const Value& object, GenerationRequest& out, Complaint& complaint) {
    Fields fields(object, "chat_template_kwargs.", complaint);
    if (const auto on = fields.toggle("enable_thinking")) out.chat.enable_thinking = on;
    if (const auto on = fields.toggle("preserve_thinking")) out.chat.preserve_thinking = on;
    fields.finish();
}

}  // namespace

std::optional<ApiError> no_object(const Value& body) {
    if (body.is(Type::object)) return std::nullopt;
    return ApiError{.message =
                        fmt::format("The body must be a JSON object, not {}.", text::describe(body.type()))};
}

void read_common(Fields& fields, double most_temperature, GenerationRequest& out, Complaint& complaint) {
    if (const auto model = fields.text("model")) out.model = *model;
    out.stream = fields.toggle("stream").value_or(false);
    out.temperature = static_cast<float>(fields.real("temperature", 0, most_temperature).value_or(0));
    read_filters(fields, out.temperature == 0, out);
    fields.neutral("min_p", {"0"});
    out.seed = fields.whole("seed", 0, UINT64_MAX);
    if (const Value* given = fields.object("diffusion")) read_diffusion(*given, out, complaint);
    if (const auto on = fields.toggle("enable_thinking")) out.chat.enable_thinking = on;
    if (const Value* given = fields.object("chat_template_kwargs"))
        read_template_switches(*given, out, complaint);
}

void read_stops(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint) {
    const Value* given = fields.take(name);
    if (given == nullptr) return;
    const std::string path = fields.path_of(name);
    const auto add = [&](const Value& stop) {
        if (!stop.is(Type::string) || stop.as_string().empty())
            return complaint.refuse(path, fmt::format("{} must hold texts that are not empty.", path));
        out.stops.push_back(stop.as_string());
    };
    if (given->is(Type::string)) {
        if (!given->as_string().empty()) add(*given);
    } else if (!given->is(Type::array)) {
        complaint.refuse(path, fmt::format("{} must be a text or a list of texts, not {}.", path,
                                           text::describe(given->type())));
    } else if (given->as_array().size() > 64) {
        complaint.refuse(
            path, fmt::format("{} must hold at most 64 texts, not {}.", path, given->as_array().size()));
    } else {
        for (const Value& stop : given->as_array()) add(stop);
    }
}

void read_neutral(Fields& fields) {
    fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                   "cache_control"});
    fields.neutral("service_tier", {R"("auto")", R"("default")"});
    fields.neutral("n", {"1"});
    fields.neutral("presence_penalty", {"0"});
    fields.neutral("frequency_penalty", {"0"});
    fields.neutral("repetition_penalty", {"1"});
    fields.neutral("ignore_eos", {"false"});
    fields.never("logit_bias", "the logits of a canvas are not biased");
}

Value message_of(std::string_view role, Value content) {
    Value::Object members;
    members.push_back({"role", string(role)});
    members.push_back({"content", std::move(content)});
    return Value::object(std::move(members));
}

namespace {

// The template drops a result that follows no call without a word, so a client would wonder.
void check_results(const Value& messages, Complaint& complaint) {
    const Value* calls = nullptr;  // of the assistant message that results may follow now
    for (std::size_t i = 0; i < messages.as_array().size(); ++i) {
        const Value& message = messages.as_array()[i];
        if (text_at(message, "role") != "tool") {
            calls = message.find("tool_calls");
            continue;
        }
        const std::string_view id = text_at(message, "tool_call_id");
        bool known = false;
        if (is(calls, Type::array)) {
            for (const Value& call : calls->as_array()) known = known || text_at(call, "id") == id;
            known = known || (id.empty() && !calls->as_array().empty());
        }
        if (known) continue;
        return complaint.refuse(
            "messages",
            fmt::format(
                "messages[{}] is the result of a tool call {} that the assistant message before it does "
                "not make; results follow directly after the calls.",
                i, text::json_quoted(id.substr(0, 60))));
    }
}

}  // namespace

void read_conversation(const Value& messages, const Value& tools, GenerationRequest& out,
                       Complaint& complaint) {
    if (complaint.error) return;
    Result<text::ChatInput> input = text::chat_input(messages, tools);
    if (!input) {
        const std::string& message = input.error().message;
        const bool of_tools = message.starts_with("tools") || message.starts_with("`tools`");
        return complaint.refuse(of_tools ? "tools" : "messages",
                                api_error_of(input.error(), "messages").message);
    }
    check_results(messages, complaint);
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
        return complaint.refuse(std::string(field),
                                fmt::format("{} asks for a tool call, and there are no tools; "
                                            "declare them in tools.",
                                            field));
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
    complaint.refuse(std::string(field), fmt::format("{} names the tool {}, which tools does not declare.",
                                                     field, text::json_quoted(name.substr(0, 60))));
}

std::optional<ApiError> read_request(Api api, const Value& body, bool lenient, GenerationRequest& out,
                                     ResponseStore* store) {
    switch (api) {
        case Api::completions:
            return read_completion(body, lenient, out);
        case Api::responses:
            return read_responses(body, lenient, store, out);
        case Api::messages:
            return read_messages(body, lenient, false, out);
        case Api::chat:
        case Api::own:
            break;
    }
    return read_chat(body, lenient, out);
}

}  // namespace dgemma::server
