#include "cli/memory_fit.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/host_memory.h"
#include "base/quote.h"
#include "base/weight_bytes.h"
#include "cli/generation_flags.h"
#include "cli/words.h"
#include "engine/device.h"
#include "engine/loaded_model.h"
#include "model/kv_cache.h"
#include "model/tensor_list.h"

namespace dgemma::cli {

namespace {

// What a config.json asks for in its wildest dreams is beyond 64 bits.
std::uint64_t bounded(double bytes) { return static_cast<std::uint64_t>(std::min(bytes, 0x1p62)); }

// Values of f32 that a pass has at hand for each of its rows: the activations of model/forward and what the
// experts and the dense MLP hold between their two products.
double values_of_row(const model::TextConfig& text) {
    double widest = 0;
    for (const auto& layer : text.layers)
        widest = std::max(widest, static_cast<double>(2 * text.heads + 2 * layer.kv_heads) * layer.head_dim);
    const double hidden = text.hidden_size;
    return 6 * hidden + widest + text.experts + 2.0 * text.intermediate_size +
           text.top_k * (3.0 * text.expert_size + 2 * hidden);
}

Result<MemoryFit> memory_fit(const files::Checkpoint& checkpoint, const Arguments& arguments) {
    DGEMMA_TRY(const model::Config config, model::read_config(checkpoint));
    MemoryFit fit;
    const model::TensorReport found = model::survey_tensors(config, checkpoint);
    for (const std::string& name : checkpoint.names()) {
        if (std::binary_search(found.ignored.begin(), found.ignored.end(), name) ||
            std::binary_search(found.unexpected.begin(), found.unexpected.end(), name))
            continue;
        const WeightView weight = *checkpoint.weight(name);
        const auto grid = weight_grid(weight);
        if (grid) fit.weights += grid->total().total();
        if (weight.shape.size() == 1) fit.scratch += static_cast<std::uint64_t>(weight.elements()) * 4;
    }
    const engine::LoadOptions options = load_options(arguments);
    const model::TextConfig& text = config.text;
    const double canvas = arguments.whole_or(Flag::canvas_length, config.canvas_length);
    fit.logits = bounded(4.0 * canvas * text.vocab_size);
    const double rows = std::max<double>(canvas, options.prefill_chunk);
    fit.scratch += bounded(4.0 * rows * values_of_row(text));
    fit.kv = engine::kv_type_of(options, config);
    using model::KvCache, model::LayerKind;
    fit.token = bounded(KvCache::bytes_per_token(text, LayerKind::full, fit.kv));
    fit.rings = bounded(KvCache::bytes_per_token(text, LayerKind::sliding, fit.kv) *
                        static_cast<double>(KvCache::ring_tokens(text, options.prefill_chunk)));
    fit.longest = options.context > 0 ? options.context : text.max_positions;
    fit.least = std::min<std::int64_t>(fit.longest, static_cast<std::int64_t>(canvas));
    if (const auto memory = arguments.text(Flag::memory)) {
        fit.limit = read_size(*memory);
        if (!fit.limit)
            return Error{
                ErrorKind::usage,
                fmt::format("--memory takes a size such as 24G or 512M, and {} is none.", quote(*memory))};
    } else {
        fit.limit = host_memory().all;
    }
    return fit;
}

}  // namespace

std::uint64_t MemoryFit::need(std::int64_t context) const {
    return bounded(static_cast<double>(weights) + static_cast<double>(logits) + static_cast<double>(scratch) +
                   static_cast<double>(rings) + static_cast<double>(token) * static_cast<double>(context));
}

std::int64_t MemoryFit::largest_context() const {
    if (!limit) return longest;
    if (need(least) > *limit) return 0;
    if (token == 0) return longest;
    return std::min(longest, static_cast<std::int64_t>((*limit - need(0)) / token));
}

Result<MemoryFit> fit_of(const std::filesystem::path& model, const Arguments& arguments) {
    DGEMMA_TRY(const files::Checkpoint checkpoint, files::Checkpoint::open(model));
    return memory_fit(checkpoint, arguments);
}

Result<MemoryFit> fit_for_loading(const files::Checkpoint& checkpoint, const Arguments& arguments) {
    DGEMMA_TRY(MemoryFit fit, memory_fit(checkpoint, arguments));
    const std::string where = load_options(arguments).where;
    DGEMMA_TRY(const engine::Device device, engine::choose_device(where.empty() ? "cpu" : where));
    if (device.backend == engine::BackendKind::cuda) fit.limit.reset();
    DGEMMA_CHECK(check_memory(fit, arguments.given(Flag::ctx) ? fit.longest : fit.least));
    return fit;
}

void print_fit(const MemoryFit& fit, std::ostream& out) {
    const auto line = [&](std::string_view name, const std::string& value) {
        out << fmt::format("{:<34}{:>14}\n", name, value);
    };
    const auto tokens = [](std::int64_t n) { return with_commas(static_cast<std::uint64_t>(n)); };
    line("weights, mapped from the files", bytes_text(fit.weights));
    line("logits of a canvas, f32", bytes_text(fit.logits));
    line("scratch, about", bytes_text(fit.scratch));
    line(fmt::format("sliding layers' cache, {}", name_of(fit.kv)), bytes_text(fit.rings));
    line(fmt::format("a token of context, {}", name_of(fit.kv)), bytes_text(fit.token));
    line(fmt::format("all, with {} tokens", tokens(fit.least)), bytes_text(fit.need(fit.least)));
    line(fmt::format("all, with {} tokens", tokens(fit.longest)), bytes_text(fit.need(fit.longest)));
    line("memory", fit.limit ? bytes_text(*fit.limit) : "unknown");
    const std::int64_t fits = fit.largest_context();
    line("largest context that fits", fits == 0 ? "none" : tokens(fits) + " tokens");
}

void print_fit_json(const MemoryFit& fit, std::ostream& out) {
    const nlohmann::json object = {
        {"weight_bytes", fit.weights},
        {"logits_bytes", fit.logits},
        {"scratch_bytes", fit.scratch},
        {"kv", name_of(fit.kv)},
        {"ring_bytes", fit.rings},
        {"token_bytes", fit.token},
        {"least_context", fit.least},
        {"least_bytes", fit.need(fit.least)},
        {"longest_context", fit.longest},
        {"longest_bytes", fit.need(fit.longest)},
        {"memory_bytes", fit.limit ? nlohmann::json(*fit.limit) : nlohmann::json()},
        {"largest_context", fit.largest_context()},
    };
    out << object.dump() << '\n';
}

Status check_memory(const MemoryFit& fit, std::int64_t context) {
    if (!fit.limit || fit.need(context) <= *fit.limit) return {};
    const std::uint64_t cache = fit.rings + fit.token * static_cast<std::uint64_t>(context);
    const std::string needs = fmt::format(
        "The model needs {} for a context of {} tokens ({} of weights, {} of keys and values in {}, {} of "
        "logits, {} of scratch), and there are {}",
        bytes_text(fit.need(context)), with_commas(static_cast<std::uint64_t>(context)),
        bytes_text(fit.weights), bytes_text(cache), name_of(fit.kv), bytes_text(fit.logits),
        bytes_text(fit.scratch), bytes_text(*fit.limit));
    const std::int64_t fits = fit.largest_context();
    if (fits > 0) {
        return Error{ErrorKind::io,
                     fmt::format("{}: {} tokens fit; shorten the prompt, or lower --max-tokens or --ctx.",
                                 needs, with_commas(static_cast<std::uint64_t>(fits)))};
    }
    return Error{ErrorKind::io,
                 needs +
                     ": make a smaller pack of it (dgemma quantize --profile q4), or say with --memory that "
                     "more may be used (what does not stay in memory is read from disk in every step)."};
}

std::optional<std::uint64_t> read_size(std::string_view text) {
    std::size_t digits = 0;
    while (digits < text.size() &&
           (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
        ++digits;
    if (digits == 0 || digits > 20) return std::nullopt;
    const std::string number(text.substr(0, digits));
    if (std::count(number.begin(), number.end(), '.') > 1 || number == ".") return std::nullopt;
    const double value = std::strtod(number.c_str(), nullptr);
    std::string unit;
    for (const char c : text.substr(digits)) {
        if (c != ' ') unit += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    static constexpr std::string_view letters = "KMGT";
    double scale = 1;
    if (!unit.empty() && unit != "B") {
        const std::size_t power = letters.find(unit[0]);
        const std::string rest = unit.substr(1);
        if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB"))
            return std::nullopt;
        scale = std::pow(1024.0, static_cast<double>(power + 1));
    }
    const double bytes = value * scale;
    if (!(bytes >= 1) || bytes > 0x1p62) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
}

}  // namespace dgemma::cli
