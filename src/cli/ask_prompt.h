// What `ask` is asked: from the command line, files and stdin to token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "reply/prompt.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/value.h"

namespace dgemma::cli {

// What was read, before there is a model.
struct AskInput {
    std::optional<std::string> prompt;  // UTF-8, not blank
    text::Value messages;  // a list: those of --messages, --system before and the prompt after them
    text::Value tools;     // a list, or null
    bool raw = false;      // `prompt` is template text, and there are no messages
};

// Reads the words, --file, --messages, --tools, and stdin where nothing else says what to ask. Errors: usage
// (nothing or two things to ask, a blank prompt, text that is not UTF-8, flags that contradict each other),
// not_found, io, invalid (JSON).
Result<AskInput> read_ask_input(const Arguments& arguments, Console& console);

// Errors: those of the template; unsupported for images, audio and video.
Result<reply::Prompt> encode_ask(const AskInput& input, const Arguments& arguments,
                                 text::TemplateRevision revision, const text::Tokenizer& tokenizer);

}  // namespace dgemma::cli
