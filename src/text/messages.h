// Requests in the form of the OpenAI API to what the chat template is given (contract/tokenizer.md 2.1).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/value.h"

namespace dgemma::text {

// Checks `messages` and `tools` (null for none) and brings them into the template's form:
// - roles are system, developer, user, assistant or tool, and there is at least one message;
// - content is text, null or a list of parts: text, image, image_url, video. Audio is refused: there is no
// tower for it;
// - arguments of tool calls that are JSON text become objects;
// - an object as the content of a tool message becomes JSON text;
// - tools have the wrapped form, {"type":"function","function":{...}}, with a name. A null description goes
// away. Errors: invalid, with one sentence that begins with the path of what is wrong ("messages[2].content
// is ...", "tools[0].function.name is ..."), or with `messages` or `tools`.
Result<ChatInput> chat_input(const Value& messages, const Value& tools);

// The same from JSON texts: `messages_json` is the list, or an object with `messages` and perhaps `tools`;
// `tools_json` is a list, or empty for none.
Result<ChatInput> chat_input_from_json(std::string_view messages_json, std::string_view tools_json);

// One question. No system message if `system` is empty.
ChatInput chat_input_from_prompt(std::string_view system, std::string_view user, bool thinking);

// Takes the content away from a last assistant message that has both content and answered tool calls.
// Rendered with it, the prompt closes the turn and opens no other (contract/tokenizer.md 2.8). Off unless
// asked for: it deviates from the reference.
void drop_content_after_results(ChatInput& input);

}  // namespace dgemma::text
