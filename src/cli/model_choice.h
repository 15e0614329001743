// Which model a command means, and opening it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/memory_fit.h"
#include "engine/generator.h"
#include "files/checkpoint.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

// The demo checkpoint that comes with the source: models/demo in one of the directories above the executable.
std::optional<std::filesystem::path> embedded_demo();

// The model of --model, DGEMMA_MODEL, or else the embedded demo. Errors: those of files::locate_model;
// not_found where there is no demo either.
Result<std::filesystem::path> chosen_model(const Arguments& arguments);

// The template revision of the checkpoint in `directory`: chat_template.jinja, else the chat_template of
// tokenizer_config.json (of several the one named "default"), else canonical. Errors: unsupported for an
// unknown one, with its hash, unless --template-fallback says what to use.
Result<text::TemplateRevision> template_of(const std::filesystem::path& directory,
                                           const Arguments& arguments);

// The tokenizer beside the weights. Errors: those of load_tokenizer_for; of random weights that came without
// one, unsupported, with what they are for.
Result<text::Tokenizer> tokenizer_of(const files::Checkpoint& checkpoint);

// Errors: invalid, where the tokenizer is one of another model: its ids mean something else there, with no
// error of their own.
Status check_fit(const text::Tokenizer& tokenizer, int vocabulary, const std::filesystem::path& directory);

// A model that is ready to answer. `checkpoint` stays where it is, because the generator reads from it.
struct OpenModel {
    std::unique_ptr<files::Checkpoint> checkpoint;
    text::Tokenizer tokenizer;
    std::unique_ptr<engine::Generator> generator;
    MemoryFit fit;
};

// Errors: those of the files, of their text and of Generator::load; io, before anything is loaded, where the
// model does not fit into memory.
Result<OpenModel> open_model(const Arguments& arguments);

// The tensors that no part of the model reads; none where config.json cannot be read, which others say.
std::vector<std::string> unexpected_tensors(const files::Checkpoint& checkpoint);
// "2 tensors are not part of the model and not used: a and b": a checkpoint that holds tensors that no part
// of the model reads may be of another model, or hold an adapter that was never merged. Not for none.
std::string unexpected_text(const std::vector<std::string>& tensors);
// The same as a note, where there are any.
void warn_of_unexpected(const files::Checkpoint& checkpoint, std::ostream& err);

}  // namespace dgemma::cli
