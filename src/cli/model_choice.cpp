#include "cli/model_choice.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/generation_flags.h"
#include "files/locate.h"
#include "files/mapping.h"
#include "model/tensor_list.h"
#include "text/value.h"

namespace dgemma::cli {

namespace fs = std::filesystem;

namespace {

// The chat_template of tokenizer_config.json, if it has one.
Result<std::optional<std::string>> embedded_template(const fs::path& file) {
    if (!files::is_there(file)) return std::optional<std::string>();
    DGEMMA_TRY(const std::string content, files::read_text(file));
    DGEMMA_TRY(const text::Value config, text::parse_json(content, file.string()));
    const text::Value* found = config.find("chat_template");
    if (found == nullptr || found->is(text::Value::Type::null)) return std::optional<std::string>();
    if (found->is(text::Value::Type::string)) return std::optional(found->as_string());
    if (found->is(text::Value::Type::array)) {
        for (const text::Value& entry : found->as_array()) {
            const text::Value* name = entry.find("name");
            const text::Value* body = entry.find("template");
            if (name != nullptr && name->is(text::Value::Type::string) && name->as_string() == "default" &&
                body != nullptr && body->is(text::Value::Type::string)) {
                return std::optional(body->as_string());
            }
        }
    }
    return Error{ErrorKind::invalid, file.string() +
                                         " has a chat_template that is neither a text nor a list with "
                                         "one named \"default\"; download the file again."};
}

}  // namespace

std::optional<fs::path> embedded_demo() {
    std::error_code problem;
    const fs::path executable = fs::read_symlink("/proc/self/exe", problem);
    if (problem) return std::nullopt;
    for (fs::path above = executable.parent_path();; above = above.parent_path()) {
        const fs::path demo = above / "models" / "demo";
        if (fs::exists(demo / "config.json", problem)) return demo;
        if (above == above.parent_path()) return std::nullopt;
    }
}

Result<fs::path> chosen_model(const Arguments& arguments) {
    if (const auto spec = arguments.text(Flag::model)) return files::locate_model(*spec);
    if (auto demo = embedded_demo()) return *std::move(demo);
    return Error{ErrorKind::not_found,
                 "There is no models/demo above the executable; say which model to use with --model."};
}

Result<text::TemplateRevision> template_of(const fs::path& directory, const Arguments& arguments) {
    const fs::path file = directory / "chat_template.jinja";
    std::optional<std::string> content;
    if (files::is_there(file)) {
        DGEMMA_TRY(content, files::read_text(file));
    } else {
        DGEMMA_TRY(content, embedded_template(directory / "tokenizer_config.json"));
    }
    if (!content) return text::TemplateRevision::canonical;
    Result<text::TemplateRevision> revision = text::identify_template(*content);
    if (!revision && arguments.given(Flag::template_fallback)) return text::TemplateRevision::canonical;
    return revision;
}

Result<text::Tokenizer> tokenizer_of(const files::Checkpoint& checkpoint) {
    auto tokenizer = text::load_tokenizer_for(checkpoint.path());
    if (!tokenizer && tokenizer.error().kind == ErrorKind::not_found && checkpoint.pack() != nullptr &&
        checkpoint.pack()->manifest().synthetic()) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("{} holds random weights and no tokenizer: it is there for dgemma bench, and has "
                        "nothing to answer.",
                        quote(checkpoint.path().string()))};
    }
    return tokenizer;
}

Status check_fit(const text::Tokenizer& tokenizer, int vocabulary, const fs::path& directory) {
    if (tokenizer.vocab_size() != vocabulary) {
        return Error{
            ErrorKind::invalid,
            fmt::format("The tokenizer of {} has {} tokens, and the model {}; it belongs to another model. "
                        "Download the model's own tokenizer.json.",
                        quote(directory.string()), tokenizer.vocab_size(), vocabulary)};
    }
    for (const std::string_view token : {"<bos>", "<|turn>", "<turn|>"}) {
        const std::int32_t id = tokenizer.id_of(token);
        if (id < 0 || !tokenizer.is_special(id)) {
            return Error{
                ErrorKind::invalid,
                fmt::format("The tokenizer of {} has no control token {}, which every prompt needs; download "
                            "the model's own tokenizer.json.",
                            quote(directory.string()), token)};
        }
    }
    return {};
}

std::vector<std::string> unexpected_tensors(const files::Checkpoint& checkpoint) {
    const auto config = model::read_config(checkpoint);
    if (!config) return {};
    return model::survey_tensors(*config, checkpoint).unexpected;
}

std::string unexpected_text(const std::vector<std::string>& tensors) {
    return fmt::format("{} not part of the model and not used: {}",
                       tensors.size() == 1 ? "1 tensor is" : fmt::format("{} tensors are", tensors.size()),
                       model::name_list(tensors, 3));
}

void warn_of_unexpected(const files::Checkpoint& checkpoint, std::ostream& err) {
    const std::vector<std::string> tensors = unexpected_tensors(checkpoint);
    if (!tensors.empty()) err << fmt::format("dgemma: note: {}\n", unexpected_text(tensors));
}

Result<OpenModel> open_model(const Arguments& arguments) {
    DGEMMA_TRY(const fs::path path, chosen_model(arguments));
    DGEMMA_TRY(files::Checkpoint opened, files::Checkpoint::open(path));
    auto checkpoint = std::make_unique<files::Checkpoint>(std::move(opened));
    DGEMMA_TRY(text::Tokenizer tokenizer, tokenizer_of(*checkpoint));
    DGEMMA_TRY(const MemoryFit fit, fit_for_loading(*checkpoint, arguments));
    DGEMMA_TRY(auto generator, engine::Generator::load(*checkpoint, load_options(arguments)));
    DGEMMA_CHECK(check_fit(tokenizer, generator->config().text.vocab_size, checkpoint->path()));
    return OpenModel{std::move(checkpoint), std::move(tokenizer), std::move(generator), fit};
}

}  // namespace dgemma::cli
