// How the ids of a reply are read, and what the engine's guards ask about them.
#pragma once

#include "engine/generator.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace dgemma::reply {

// How a reply to this request is parsed. starts_in_thought: the prompt ended in an open thought.
text::ParserOptions parser_options(const engine::Request& request, bool starts_in_thought);

// Answers the questions that only text can tell about ids (see engine::Request).
void answer_guards(engine::Request& request, const text::Tokenizer& tokenizer, bool starts_in_thought);

}  // namespace dgemma::reply
