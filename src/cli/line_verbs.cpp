// The commands that read and write JSON lines, and `info`: from flags to the functions that do the work.
#include "cli/info.h"
#include "cli/memory_fit.h"
#include "cli/model_choice.h"
#include "cli/parse.h"
#include "cli/template.h"
#include "cli/tokenize.h"
#include "cli/verbs.h"
#include "files/mapping.h"

namespace dgemma::cli {

namespace {

// --jsonl says what is so anyway.
Status check_jsonl(const Arguments& arguments) {
    if (!arguments.given(Flag::jsonl) || arguments.on(Flag::jsonl)) return {};
    return Error{ErrorKind::usage, "JSON lines are the only format there is; leave out --jsonl=no."};
}

}  // namespace

Result<int> run_info(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const std::filesystem::path path, chosen_model(arguments));
    if (arguments.on(Flag::fit)) {
        DGEMMA_TRY(const MemoryFit fit, fit_of(path, arguments));
        arguments.on(Flag::json) ? print_fit_json(fit, console.out) : print_fit(fit, console.out);
        return fit.largest_context() > 0 ? 0 : 1;
    }
    DGEMMA_TRY(const InfoReport report, inspect(path));
    if (arguments.on(Flag::json)) {
        print_json(report, console.out);
    } else {
        print_text(report, console.out);
    }
    return 0;
}

Result<int> run_tokenize(const Arguments& arguments, Console& console) {
    DGEMMA_CHECK(check_jsonl(arguments));
    const auto named = arguments.text(Flag::tokenizer);
    if (named && arguments.source(Flag::model) == "--model" && arguments.given(Flag::model)) {
        return Error{ErrorKind::usage, "tokenize takes --model or --tokenizer, not both."};
    }
    const TokenizeOptions options{.decode = arguments.on(Flag::decode),
                                  .no_special = arguments.on(Flag::no_special),
                                  .skip_special = arguments.on(Flag::skip_special)};
    if (options.decode && options.no_special) {
        return Error{ErrorKind::usage, "--no-special is about text to encode; leave it out with --decode."};
    }
    if (!options.decode && options.skip_special) {
        return Error{ErrorKind::usage, "--skip-special is about ids to decode; add --decode."};
    }
    std::filesystem::path path;
    if (!named) {
        DGEMMA_TRY(path, chosen_model(arguments));
    }
    DGEMMA_TRY(const text::Tokenizer tokenizer,
               named ? text::Tokenizer::load(*named) : text::load_tokenizer_for(path));
    DGEMMA_CHECK(tokenize_lines(tokenizer, options, console.in, console.out));
    return 0;
}

Result<int> run_template(const Arguments& arguments, Console& console) {
    DGEMMA_CHECK(check_jsonl(arguments));
    text::TemplateRevision revision = text::TemplateRevision::canonical;
    if (const auto file = arguments.text(Flag::template_file)) {
        if (arguments.source(Flag::model) == "--model" && arguments.given(Flag::model)) {
            return Error{ErrorKind::usage, "template takes --model or --template, not both."};
        }
        DGEMMA_TRY(const std::string content, files::read_text(*file));
        auto identified = text::identify_template(content);
        if (!identified && !arguments.given(Flag::template_fallback)) return std::move(identified).error();
        if (identified) revision = identified.value();
    } else {
        DGEMMA_TRY(std::filesystem::path path, chosen_model(arguments));
        if (!std::filesystem::is_directory(path)) path = path.parent_path();
        DGEMMA_TRY(revision, template_of(path, arguments));
    }
    DGEMMA_CHECK(template_lines(revision, console.in, console.out));
    return 0;
}

Result<int> run_parse(const Arguments& arguments, Console& console) {
    DGEMMA_CHECK(check_jsonl(arguments));
    DGEMMA_CHECK(parse_lines(console.in, console.out));
    return 0;
}

}  // namespace dgemma::cli
