// From flags to what the engine takes.
#pragma once

#include "base/result.h"
#include "cli/arguments.h"
#include "diffusion/options.h"
#include "engine/generator.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

engine::LoadOptions load_options(const Arguments& arguments);

// A request with everything but the prompt: what the flags set, over `defaults`, the checkpoint's own.
// Errors: usage, for flags that contradict each other and numbers that the sampler refuses.
Result<engine::Request> request_of(const Arguments& arguments, const diffusion::Options& defaults);

// How a reply to this request is parsed. starts_in_thought: the prompt ended in an open thought.
text::ParserOptions parser_options(const engine::Request& request, bool starts_in_thought);

// Answers the questions that only text can tell about ids (see engine::Request).
void answer_guards(engine::Request& request, const text::Tokenizer& tokenizer, bool starts_in_thought);

}  // namespace dgemma::cli
