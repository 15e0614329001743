#include "cli/parse.h"

#include "cli/json_lines.h"

namespace dgemma::cli {

std::string reply_json(const text::ParsedReply& reply) {
    using text::Value;
    const auto text_or_null = [](const std::optional<std::string>& text) {
        return text ? Value::string(*text) : Value();
    };
    Value::Array calls;
    for (const text::ToolCall& call : reply.tool_calls)
        calls.push_back(Value::object({{"name", Value::string(call.name)}, {"arguments", call.arguments}}));
    return text::to_json(Value::object({
        {"reasoning_content", text_or_null(reply.reasoning)},
        {"content", text_or_null(reply.content)},
        {"tool_calls", Value::array(std::move(calls))},
        {"stop_token", reply.stop ? Value::string(std::string(text::text_of(*reply.stop))) : Value()},
    }));
}

Status parse_lines(std::istream& in, std::ostream& out) {
    return for_each_json_line(in, out, [](const text::Value& line) -> Result<std::string> {
        const text::Value* output = line.find("output");
        if (!output || !output->is(text::Value::Type::string))
            return Error{ErrorKind::invalid, "has no `output`: give it the text of a reply"};
        text::ParserOptions options;
        if (const text::Value* state = line.find("prompt_state");
            state && !state->is(text::Value::Type::null)) {
            const bool is_text = state->is(text::Value::Type::string);
            if (is_text && state->as_string() == "reasoning")
                options.start = text::ParserOptions::Start::thought;
            else if (!is_text || state->as_string() != "content")
                return Error{ErrorKind::invalid,
                             "has an unknown `prompt_state`: write \"content\" or \"reasoning\""};
        }
        return reply_json(text::parse_output(output->as_string(), options));
    });
}

}  // namespace dgemma::cli
