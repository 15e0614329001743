#include "server/prepare.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "server/common_fields.h"
#include "server/conversation.h"
#include "text/utf8.h"

namespace dgemma::server {

using Type = Value::Type;

std::shared_ptr<ServedModel> model_named(const ServedModels& models, std::string_view name) {
    for (const auto& model : models) {
        if (name.empty() || model->name == name) return model;
    }
    return nullptr;
}

ApiError no_such_model(const ServedModels& models, std::string_view name) {
    std::string names;
    for (const auto& model : models) names += (names.empty() ? "" : ", ") + model->name;
    return {.status = 404,
            .code = "model_not_found",
            .message = fmt::format("There is no model {} here; there is {}.", quote(name), names),
            .field = "model"};
}

namespace {

// No token is longer than this (31 spaces of three bytes each, as the tokenizer counts them), so what has
// more bytes for each token of the context need not be tokenized to know that it does not fit.
constexpr std::size_t longest_token = 96;
constexpr std::size_t most_tokenized = std::size_t{4} * 1024 * 1024;

// JSON of very many values takes many times its size to read; a conversation never has as many.
constexpr std::ptrdiff_t most_commas = 1'000'000;

Result<Value> parse_body(std::string_view body) {
    if (std::count(body.begin(), body.end(), ',') > most_commas)
        return Error{ErrorKind::invalid, "The body holds more than a million values; send less at once."};
    // JSON is UTF-8 (RFC 8259, 8.1); what is read instead would not be what the client means. An escaped lone
    // surrogate, which clients make when they cut a text, is U+FFFD.
    if (!text::is_valid_utf8(body)) {
        return Error{ErrorKind::invalid,
                     "The body is not valid UTF-8, as JSON has to be; encode its text as UTF-8."};
    }
    return text::parse_json(body, "the body");
}

// Control tokens in a client's text are text; as ids they can be given, so these are refused.
std::optional<ApiError> check_ids(std::string_view field, const std::vector<std::int32_t>& ids,
                                  const text::Tokenizer& tokenizer, bool control_too) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool unknown = ids[i] >= tokenizer.vocab_size();
        const bool control = tokenizer.is_special(ids[i]) && tokenizer.token(ids[i]) != "<bos>";
        if (!unknown && (control_too || !control)) continue;
        const std::string place = fmt::format("{}[{}]", field, i);
        return ApiError{.message = fmt::format("{} is {}, which is {}.", place, ids[i],
                                               unknown ? "outside the vocabulary"
                                                       : "a control token that a prompt may not hold"),
                        .field = place};
    }
    return std::nullopt;
}

// Why a conversation makes no prompt. The renderer does not say which message holds what nobody can read.
ApiError prompt_error(const GenerationRequest& request, const Error& error) {
    ApiError out = conversation_error(request, error);
    if (error.kind != ErrorKind::unsupported) return out;
    const Value::Array& messages = request.chat.messages.as_array();
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const Value* content = messages[i].find("content");
        if (!is(content, Type::array)) continue;
        for (const Value& part : content->as_array()) {
            if (text_at(part, "type") == "text") continue;
            out.field = place_of(request, i) + ".content";
            return out;
        }
    }
    return out;
}

// Where the messages are results of calls that this server made, the engine can go on from what it has. What
// follows its log are the results as rendered; the log ends with the marker that opens the first of them.
engine::Continuation continuation_of(const Prepared& prepared) {
    engine::Continuation out;
    const text::ChatInput& chat = prepared.request.chat;
    const auto last = last_round(chat.messages);
    if (!last) return out;
    const Value::Array& messages = chat.messages.as_array();
    const auto calls = messages.begin() + static_cast<std::ptrdiff_t>(last->calls_at);
    const Value before = Value::array(Value::Array(messages.begin(), calls));
    const engine::RequestId round = prepared.model->rounds->find(
        round_key(before, chat.tools, chat.enable_thinking.value_or(false), last->calls));
    if (round == 0) return out;
    text::ChatInput unanswered = chat;
    unanswered.messages = Value::array(Value::Array(messages.begin(), calls + 1));
    const Result<reply::Prompt> rendered =
        reply::chat_prompt(prepared.model->tokenizer, prepared.model->revision, unanswered);
    if (!rendered || rendered->ids.size() >= prepared.prompt.ids.size()) return out;
    const auto& ids = prepared.prompt.ids;
    if (!std::equal(rendered->ids.begin(), rendered->ids.end(), ids.begin())) return out;
    if (rendered->ids.empty() || rendered->ids.back() != prepared.model->tokenizer.id_of("<|tool_response>"))
        return out;
    out.round = round;
    out.suffix.assign(ids.begin() + static_cast<std::ptrdiff_t>(rendered->ids.size()), ids.end());
    return out;
}

}  // namespace

std::variant<Prepared, ApiError> prepare(Api api, std::string_view body, bool lenient, bool count_only,
                                         const ServedModels& models, ResponseStore* store) {
    Result<Value> json = parse_body(body);
    if (!json) return api_error_of(json.error(), "");
    Prepared out;
    auto error = api == Api::messages ? read_messages(json.value(), lenient, count_only, out.request)
                                      : read_request(api, json.value(), lenient, out.request, store);
    if (error) return *std::move(error);
    out.model = model_named(models, out.request.model);
    if (!out.model) return no_such_model(models, out.request.model);
    out.request.model = out.model->name;
    const text::Tokenizer& tokenizer = out.model->tokenizer;
    const std::size_t most_bytes = static_cast<std::size_t>(out.model->port->context_limit()) * longest_token;
    if (api == Api::completions) {
        if (out.request.text.size() > most_bytes) {
            return ApiError{
                .code = "context_length_exceeded",
                .message = fmt::format("The prompt has {} bytes, and whatever they say, not more than "
                                       "{} fit the context.",
                                       out.request.text.size(), most_bytes),
                .field = "prompt"};
        }
        if (!out.request.ids.empty()) {
            if (auto bad = check_ids("prompt", out.request.ids, tokenizer, false)) return *std::move(bad);
            out.prompt = reply::plain_prompt(tokenizer, "");
            const bool begun = out.request.ids.front() == tokenizer.id_of("<bos>");
            out.prompt.ids.insert(out.prompt.ids.end(), out.request.ids.begin() + (begun ? 1 : 0),
                                  out.request.ids.end());
        } else {
            out.prompt = reply::plain_prompt(tokenizer, out.request.text);
        }
        return out;
    }
    Result<reply::Prompt> prompt =
        reply::chat_prompt(tokenizer, out.model->revision, out.request.chat, most_bytes);
    if (!prompt) return prompt_error(out.request, prompt.error());
    out.prompt = std::move(prompt).value();
    if (!count_only) out.continuation = continuation_of(out);
    return out;
}

std::variant<std::string, ApiError> tokenize_json(std::string_view body, const ServedModels& models) {
    Result<Value> json = parse_body(body);
    if (!json) return api_error_of(json.error(), "");
    if (!json->is(Type::object)) return ApiError{.message = "The body must be a JSON object."};
    Complaint complaint;
    Fields fields(json.value(), "", complaint);
    const std::string name = fields.text("model").value_or("");
    const auto text = fields.text("text");
    const Value* messages = fields.list("messages");
    const Value* tools = fields.list("tools");
    GenerationRequest request;
    if (const auto on = fields.toggle("enable_thinking")) request.chat.enable_thinking = on;
    if (const auto prompt = fields.toggle("add_generation_prompt"))
        request.chat.add_generation_prompt = *prompt;
    fields.finish();
    if (!text && messages == nullptr) complaint.refuse("text", "text is missing; send a text, or messages.");
    if (text && messages != nullptr)
        complaint.refuse("text", "There are text and messages; send one of them.");
    if (messages != nullptr) {
        request.diffusion.exact = true;  // as it is: nothing is left out
        read_conversation(*messages, tools != nullptr ? *tools : Value(), request, complaint);
    }
    if (text && text->size() > most_tokenized)
        complaint.refuse("text", "text has more than 4 MiB; send it in parts.");
    if (complaint.error) return *std::move(complaint.error);
    const auto model = model_named(models, name);
    if (!model) return no_such_model(models, name);
    std::vector<std::int32_t> ids;
    if (text) {
        ids = model->tokenizer.encode(*text, text::Specials::as_text);
    } else {
        Result<reply::Prompt> prompt =
            reply::chat_prompt(model->tokenizer, model->revision, request.chat, most_tokenized);
        if (!prompt) return prompt_error(request, prompt.error());
        ids = std::move(prompt->ids);
    }
    return fmt::format("{{\"tokens\":[{}],\"count\":{}}}", fmt::join(ids, ","), ids.size());
}

std::variant<std::string, ApiError> detokenize_json(std::string_view body, const ServedModels& models) {
    Result<Value> json = parse_body(body);
    if (!json) return api_error_of(json.error(), "");
    GenerationRequest request;
    Complaint complaint;
    if (!json->is(Type::object)) return ApiError{.message = "The body must be a JSON object."};
    Fields fields(json.value(), "", complaint);
    const std::string name = fields.text("model").value_or("");
    const bool skip = fields.toggle("skip_special").value_or(false);
    const Value* tokens = fields.list("tokens");
    fields.finish();
    if (tokens == nullptr) complaint.refuse("tokens", "tokens is missing; send a list of token ids.");
    if (complaint.error) return *std::move(complaint.error);
    const auto model = model_named(models, name);
    if (!model) return no_such_model(models, name);
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < tokens->as_array().size(); ++i) {
        const auto id = token_id(tokens->as_array()[i]);
        if (!id) {
            const std::string place = fmt::format("tokens[{}]", i);
            return ApiError{.message = place + " is no token id.", .field = place};
        }
        ids.push_back(*id);
    }
    if (auto bad = check_ids("tokens", ids, model->tokenizer, true)) return *std::move(bad);
    return text::to_json(object({{"text", string(model->tokenizer.decode(ids, skip))}}));
}

}  // namespace dgemma::server
