// `synth`: a pack of random weights in real shapes, so that speed can be measured anywhere.
#include <fmt/format.h>

#include "cli/verbs.h"
#include "cli/words.h"
#include "cli/write_pack.h"
#include "model/synthetic.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace dgemma::cli {

Result<int> run_synth(const Arguments& arguments, Console& console) {
    const std::string preset = arguments.text(Flag::preset).value_or("26b");
    const std::string shape = arguments.text(Flag::logits).value_or("flat");
    const std::uint64_t seed = arguments.whole(Flag::seed).value_or(0);
    PackJob job;
    DGEMMA_TRY(const std::string text, model::preset_config(preset, arguments.whole_or(Flag::layers, 0)));
    DGEMMA_TRY(const model::Config config, model::parse_config(text, "the preset's config.json"));
    DGEMMA_TRY(job.formats, model::choose_formats(arguments.text(Flag::format).value_or("bf16"), {}));
    job.label = "writing";
    job.source = fmt::format("synth --preset {} --layers {} --logits {} --seed {}", preset,
                             config.text.layers.size(), shape, seed);
    job.plan = model::plan_synthetic_pack(config, job.formats);
    const auto logits = shape == "peaked" ? model::LogitShape::peaked : model::LogitShape::flat;
    job.rows = [&](const model::PlannedTensor& planned) {
        return model::synthetic_rows(planned, config, logits, seed);
    };
    job.files = {{"config.json", text}, {"generation_config.json", model::preset_generation_config()}};
    if (const auto tokenizer = arguments.text(Flag::tokenizer)) {
        DGEMMA_CHECK(text::Tokenizer::load(*tokenizer));  // a broken one is refused before any work
        DGEMMA_TRY(std::string content, text::read_tokenizer_file(*tokenizer));
        job.files.emplace_back("tokenizer.json", std::move(content));
    }
    return write_pack(job, arguments, console);
}

}  // namespace dgemma::cli
