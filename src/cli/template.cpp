#include "cli/template.h"

#include <istream>
#include <ostream>
#include <string>

#include <fmt/format.h>

#include "cli/json_lines.h"
#include "text/template_value.h"

namespace dgemma::cli {

namespace {

// What Jinja makes of a switch: any value counts by its truth. An absent one was not passed.
std::optional<bool> flag_of(const text::Value& line, std::string_view key) {
    const text::Value* value = line.find(key);
    if (!value) return std::nullopt;
    return text::is_true(value);
}

}  // namespace

Status template_lines(text::TemplateRevision revision, std::istream& in, std::ostream& out) {
    return for_each_json_line(in, out, [&](const text::Value& line) -> Result<std::string> {
        const text::Value* messages = line.find("messages");
        if (!messages)
            return Error{
                ErrorKind::invalid,
                "has no `messages`: write {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}]}"};
        text::ChatInput input;
        input.messages = *messages;
        if (const text::Value* tools = line.find("tools")) input.tools = *tools;
        input.add_generation_prompt = flag_of(line, "add_generation_prompt").value_or(false);
        input.enable_thinking = flag_of(line, "enable_thinking");
        input.preserve_thinking = flag_of(line, "preserve_thinking");
        const auto rendered = text::render_chat(revision, input);
        if (!rendered) return fmt::format(R"({{"error":{}}})", text::json_quoted(rendered.error().message));
        return fmt::format(R"({{"rendered":{}}})", text::json_quoted(text::join(*rendered)));
    });
}

}  // namespace dgemma::cli
