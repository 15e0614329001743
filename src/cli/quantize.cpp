// `quantize`: a checkpoint becomes a pack; with --check, a pack is held against its checksums and its source.
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/interrupt.h"
#include "cli/model_choice.h"
#include "cli/progress_bar.h"
#include "cli/verbs.h"
#include "cli/words.h"
#include "cli/write_pack.h"
#include "files/locate.h"
#include "files/mapping.h"
#include "files/pack_compare.h"
#include "model/tensor_list.h"
#include "text/tokenizer_file.h"

namespace dgemma::cli {

namespace {

namespace fs = std::filesystem;

// The text files of a model that a pack takes along, where the model has them.
constexpr std::array<std::string_view, 6> text_files{"config.json",         "generation_config.json",
                                                     "tokenizer.json",      "tokenizer_config.json",
                                                     "chat_template.jinja", "processor_config.json"};

struct Source {
    files::Checkpoint checkpoint;
    model::Config config;
};

Result<Source> open_source(const fs::path& path) {
    DGEMMA_TRY(files::Checkpoint checkpoint, files::Checkpoint::open(path));
    DGEMMA_TRY(model::Config config, model::read_config(checkpoint));
    return Source{std::move(checkpoint), std::move(config)};
}
Result<Source> open_source(const Arguments& arguments) {
    DGEMMA_TRY(const fs::path path, chosen_model(arguments));
    return open_source(path);
}

// What the source is called: its name in the hub, else that of its directory.
std::string name_of_source(const files::Checkpoint& checkpoint) {
    std::error_code error;
    const fs::path directory = fs::canonical(checkpoint.path(), error);
    if (const auto hub = files::hub_snapshot(error ? checkpoint.path() : directory)) return hub->repo;
    return (error ? checkpoint.path() : directory).filename().native();
}

std::unique_ptr<files::RowSource> rows_of(const files::Checkpoint& checkpoint, const std::string& name) {
    return std::make_unique<files::StoredRows>(*checkpoint.weight(name), true);
}

Result<int> make(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(model::PackFormats formats, model::choose_formats(arguments.text(Flag::profile).value_or("q4"),
                                                                 arguments.list(Flag::set)));
    DGEMMA_TRY(const Source source, open_source(arguments));
    PackJob job;
    job.label = "quantizing";
    job.source = name_of_source(source.checkpoint);
    job.formats = std::move(formats);
    DGEMMA_TRY(job.plan, model::plan_pack(source.config, source.checkpoint, job.formats));
    job.rows = [&](const model::PlannedTensor& planned) {
        return rows_of(source.checkpoint, planned.source);
    };
    for (const std::string_view name : text_files) {
        if (!source.checkpoint.has_file(name)) continue;
        DGEMMA_TRY(std::string text, source.checkpoint.read_text(name));
        job.files.emplace_back(name, std::move(text));
    }
    if (!source.checkpoint.has_file("tokenizer.json") && source.checkpoint.has_file("tokenizer.json.gz")) {
        DGEMMA_TRY(std::string text,
                   text::read_tokenizer_file(source.checkpoint.path() / "tokenizer.json.gz"));
        job.files.emplace_back("tokenizer.json", std::move(text));
    }
    warn_of_unexpected(source.checkpoint, console.err);
    return write_pack(job, arguments, console);
}

// The errors class by class, and the tensors that are further off than their format allows.
struct Comparison {
    std::map<std::pair<std::string, std::string>, files::WeightError> classes;
    std::vector<std::string> wrong;
};

constexpr double rounding = 1.001;  // of the comparison itself

Result<Comparison> compare(const files::Pack& pack, const Source& source, ThreadPool& pool,
                           const files::LongRun& run) {
    Comparison out;
    const model::PackFormats any{};
    std::map<std::string, std::string> names;  // in the pack -> in the source
    DGEMMA_TRY(const auto plan, model::plan_pack(source.config, source.checkpoint, any));
    for (const model::PlannedTensor& planned : plan) names.emplace(planned.item.name, planned.source);
    for (const files::PackTensor& tensor : pack.manifest().tensors) {
        const auto name = names.find(tensor.name);
        const auto weight = name == names.end() ? std::nullopt : source.checkpoint.weight(name->second);
        if (!weight || weight->shape != tensor.shape) {
            out.wrong.push_back(tensor.name);
            continue;
        }
        const files::StoredRows rows(*weight, true), stored(pack.view_of(tensor), true);
        DGEMMA_TRY(const files::WeightError error, files::compare_weight(stored, rows, pool, run));
        const auto form =
            tensor.encoding == Encoding::plain ? name_of(tensor.type) : name_of(tensor.encoding);
        out.classes[{tensor.group, std::string(form)}].add(error);
        if (error.worst > rounding) out.wrong.push_back(tensor.name);
    }
    return out;
}

void print_comparison(const Comparison& comparison, std::ostream& out) {
    out << fmt::format("{:<12}{:<10}{:>18}{:>16}{:>22}\n", "class", "format", "numbers", "relative error",
                       "largest, of allowed");
    for (const auto& [key, error] : comparison.classes) {
        out << fmt::format("{:<12}{:<10}{:>18}{:>16.6f}{:>21.1f}%\n", key.first, key.second,
                           with_commas(static_cast<std::uint64_t>(error.elements)), error.relative(),
                           error.worst * 100);
    }
}

// The directory of a pack, which may also be named by its manifest.
Result<fs::path> pack_directory(const std::string& named) {
    fs::path path = named;
    if (path.filename() == files::kPackManifestName) path = path.parent_path();
    if (!files::is_there(path)) {
        return Error{ErrorKind::not_found, fmt::format("{} is not there; check the path.", quote(named))};
    }
    if (files::is_there(path / files::kPackManifestName)) return path;
    return Error{
        ErrorKind::invalid,
        fmt::format("{} is no pack: it holds no {}; dgemma quantize makes one of a model, and dgemma info "
                    "looks at a model that is none.",
                    quote(named), files::kPackManifestName)};
}

Result<int> check(const Arguments& arguments, Console& console) {
    for (const Flag flag : {Flag::output, Flag::profile, Flag::set}) {
        if (!arguments.given(flag)) continue;
        return Error{ErrorKind::usage,
                     fmt::format("--check looks at a pack that is there and makes none, so {} "
                                 "means nothing beside it.",
                                 arguments.source(flag))};
    }
    DGEMMA_TRY(const fs::path directory, pack_directory(*arguments.text(Flag::check)));
    DGEMMA_TRY(const Source packed, open_source(directory));
    const files::Pack& pack = *packed.checkpoint.pack();
    // Every tensor of the model that its config.json tells of, in its shape.
    if (auto report = model::check_tensors(packed.config, packed.checkpoint); !report)
        return std::move(report).error();
    // Only a model given with --check itself is its source: DGEMMA_MODEL is for everyday use.
    std::optional<Source> source;
    if (arguments.given(Flag::model) && arguments.source(Flag::model) == "--model") {
        DGEMMA_TRY(source, open_source(arguments));
    }
    ThreadPool pool(pack_threads(arguments));
    const InterruptGuard interrupt;
    const auto stopped_or = [&](Error error) -> Result<int> {
        if (error.kind != ErrorKind::cancelled) return error;
        return interrupt.exit_code();
    };
    {
        ProgressBar bar(console, "checking", pack.manifest().blob_bytes);
        const Status checked =
            pack.verify(pool, {[&](std::uint64_t bytes) { bar.advance(bytes); }, &interrupt.flag()});
        if (!checked) return stopped_or(checked.error());
        bar.finish();
    }
    if (!source) {
        print_pack(pack.manifest(), console.out);
        return 0;
    }
    std::uint64_t total = 0;
    for (const files::PackTensor& tensor : pack.manifest().tensors)
        total += static_cast<std::uint64_t>(elements_of(tensor.shape)) * 2;
    ProgressBar bar(console, "comparing", total);
    const auto comparison =
        compare(pack, *source, pool, {[&](std::uint64_t bytes) { bar.advance(bytes); }, &interrupt.flag()});
    if (!comparison) return stopped_or(comparison.error());
    bar.finish();
    print_comparison(*comparison, console.out);
    if (comparison->wrong.empty()) return 0;
    return Error{
        ErrorKind::invalid,
        fmt::format("The pack is further from the model than its formats allow in {}: it was made of "
                    "another one.",
                    model::name_list(comparison->wrong, 5))};
}

}  // namespace

Result<int> run_quantize(const Arguments& arguments, Console& console) {
    return arguments.given(Flag::check) ? check(arguments, console) : make(arguments, console);
}

}  // namespace dgemma::cli
