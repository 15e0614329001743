#include "cli/ask_prompt.h"

#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/read_input.h"
#include "cli/words.h"
#include "text/messages.h"

namespace dgemma::cli {

using text::Value;

namespace {

Error usage(std::string message) { return {ErrorKind::usage, std::move(message)}; }

Status check_utf8(std::string_view text, const std::string& path) {
    if (const auto at = first_invalid_utf8(text)) {
        return usage(
            fmt::format("What {} holds is not UTF-8 (byte {}); convert it first, for example with iconv.",
                        Inputs::name_of(path), *at + 1));
    }
    return {};
}

// What there is to ask, as typed or read; nothing where only --messages asks. Checked: UTF-8, and not blank.
Result<std::optional<std::string>> read_prompt(const Arguments& arguments, Console& console, Inputs& inputs) {
    const std::vector<std::string>& words = arguments.words();
    const auto file = arguments.text(Flag::file);
    std::string prompt, where = "The prompt";
    if (!words.empty() && file) {
        return usage("The prompt is given twice, as words and with --file; leave out one of them.");
    }
    if (file) {
        DGEMMA_TRY(prompt, inputs.read(*file, "--file"));
        where = *file == "-" ? "The prompt on stdin" : fmt::format("The prompt in {}", quote(*file));
    } else if (!words.empty() && !(words.size() == 1 && words[0] == "-")) {
        prompt = fmt::format("{}", fmt::join(words, " "));
    } else if (words.empty() && arguments.given(Flag::messages)) {
        return std::optional<std::string>();
    } else {
        if (console.in_is_terminal && words.empty()) {
            return usage("There is no prompt; write it after ask in quotes, or use --file, or pipe it in.");
        }
        where = "The prompt on stdin";
        DGEMMA_TRY(prompt, inputs.read_stdin("the prompt"));
    }
    if (const auto at = first_invalid_utf8(prompt)) {
        return usage(fmt::format("{} is not UTF-8 (byte {}); convert it first, for example with iconv.",
                                 where, *at + 1));
    }
    if (prompt.find_first_not_of(" \t\r\n\v\f") == std::string::npos) {
        return usage(fmt::format("{} is empty; write what to ask.", where));
    }
    return std::optional(std::move(prompt));
}

Value message(std::string_view role, std::string content) {
    return Value::object(
        {{"role", Value::string(std::string(role))}, {"content", Value::string(std::move(content))}});
}

// --messages: a list, or an object with "messages" and maybe "tools".
Status read_messages(const std::string& path, Inputs& inputs, Value::Array& messages, Value& tools) {
    DGEMMA_TRY(const std::string content, inputs.read(path, "--messages"));
    DGEMMA_CHECK(check_utf8(content, path));
    DGEMMA_TRY(Value value, text::parse_json(content, Inputs::name_of(path)));
    if (value.is(Value::Type::object)) {
        if (const Value* found = value.find("tools")) tools = *found;
        const Value* found = value.find("messages");
        value = found != nullptr ? Value(*found) : Value();
    }
    if (!value.is(Value::Type::array)) {
        return Error{
            ErrorKind::invalid,
            fmt::format("{} is no list of messages; write [{{\"role\": \"user\", \"content\": \"...\"}}].",
                        Inputs::name_of(path))};
    }
    messages = value.as_array();
    return {};
}

bool is_system(const Value& one) {
    const Value* role = one.find("role");
    return role != nullptr && role->is(Value::Type::string) &&
           (role->as_string() == "system" || role->as_string() == "developer");
}

}  // namespace

Result<AskInput> read_ask_input(const Arguments& arguments, Console& console) {
    AskInput out;
    out.raw = arguments.on(Flag::raw);
    if (out.raw) {
        for (const Flag flag : {Flag::messages, Flag::tools, Flag::system}) {
            if (arguments.given(flag)) {
                return usage(
                    fmt::format("{} needs the chat template, and --raw is without it; leave out one of them.",
                                arguments.source(flag)));
            }
        }
        if (arguments.on(Flag::think)) {
            return usage(
                fmt::format("{} needs the chat template, and --raw is without it; leave out one of them.",
                            arguments.source(Flag::think)));
        }
    }
    const auto system = arguments.text(Flag::system);
    if (system && first_invalid_utf8(*system)) {
        return usage(
            fmt::format("The text of {} is not UTF-8; convert it first.", arguments.source(Flag::system)));
    }
    Inputs inputs(console);
    Value::Array messages;
    if (const auto path = arguments.text(Flag::messages))
        DGEMMA_CHECK(read_messages(*path, inputs, messages, out.tools));
    if (const auto path = arguments.text(Flag::tools)) {
        if (!out.tools.is(Value::Type::null)) {
            return usage(
                "There are tools in the file of --messages and in that of --tools; leave out one of them.");
        }
        DGEMMA_TRY(const std::string content, inputs.read(*path, "--tools"));
        DGEMMA_CHECK(check_utf8(content, *path));
        DGEMMA_TRY(out.tools, text::parse_json(content, Inputs::name_of(*path)));
    }
    DGEMMA_TRY(out.prompt, read_prompt(arguments, console, inputs));
    if (system) {
        if (!messages.empty() && is_system(messages.front())) {
            return usage(
                "There is a system message in the file of --messages and in --system; leave out one of "
                "them.");
        }
        messages.insert(messages.begin(), message("system", *system));
    }
    if (out.prompt) messages.push_back(message("user", *out.prompt));
    out.messages = Value::array(std::move(messages));
    return out;
}

Result<reply::Prompt> encode_ask(const AskInput& input, const Arguments& arguments,
                                 text::TemplateRevision revision, const text::Tokenizer& tokenizer) {
    if (input.raw) return reply::raw_prompt(tokenizer, input.prompt.value_or(""));
    DGEMMA_TRY(text::ChatInput chat, text::chat_input(input.messages, input.tools));
    if (arguments.on(Flag::think)) chat.enable_thinking = true;
    return reply::chat_prompt(tokenizer, revision, chat);
}

}  // namespace dgemma::cli
