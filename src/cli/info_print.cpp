#include <algorithm>
#include <ostream>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/info.h"
#include "cli/words.h"
#include "model/tensor_list.h"

namespace dgemma::cli {

namespace {

// Counts and sizes are not negative.
std::string words_for_bytes(std::int64_t bytes) { return bytes_text(static_cast<std::uint64_t>(bytes)); }
std::string grouped(std::int64_t number) { return with_commas(static_cast<std::uint64_t>(number)); }

// 0.1f as 0.1 and not as the double that equals it.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

// Text of a file without what could move a terminal's cursor.
std::string safe(const std::string& text) { return model::name_list({text}); }

const char* name_of_sampler(model::SamplerKind sampler) {
    return sampler == model::SamplerKind::entropy_bound ? "entropy-bound" : "confidence-threshold";
}

bool same_geometry(const model::LayerConfig& a, const model::LayerConfig& b) {
    return a.kind == b.kind && a.head_dim == b.head_dim && a.kv_heads == b.kv_heads &&
           a.rope_theta == b.rope_theta && a.rotated_pairs == b.rotated_pairs;
}

// Each kind of layer once, with the numbers of the layers that are of it.
std::vector<std::pair<model::LayerConfig, std::vector<std::string>>> layer_kinds(
    const model::TextConfig& text) {
    std::vector<std::pair<model::LayerConfig, std::vector<std::string>>> out;
    for (std::size_t l = 0; l < text.layers.size(); ++l) {
        const auto same = std::find_if(out.begin(), out.end(), [&](const auto& entry) {
            return same_geometry(entry.first, text.layers[l]);
        });
        const auto entry = same == out.end() ? out.insert(out.end(), {text.layers[l], {}}) : same;
        entry->second.push_back(std::to_string(l));
    }
    return out;
}

nlohmann::json layers_json(const model::TextConfig& text) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& layer : text.layers) {
        out.push_back({{"kind", layer.kind == model::LayerKind::full ? "full" : "sliding"},
                       {"head_dim", layer.head_dim},
                       {"kv_heads", layer.kv_heads},
                       {"rope_theta", layer.rope_theta},
                       {"rotated_pairs", layer.rotated_pairs}});
    }
    return out;
}

void print_model(const InfoReport& report, std::ostream& out) {
    const model::Config& config = report.config;
    const model::TextConfig& text = config.text;
    const auto line = [&](std::string_view name, const std::string& value) {
        out << fmt::format("{:<16}{}\n", name, value);
    };
    line("model", report.directory.string());
    if (report.pack.empty()) {
        line("files",
             fmt::format("{} safetensors, {}", report.files.size(), words_for_bytes(report.file_bytes)));
    } else {
        line("pack", fmt::format("{}, {}", safe(report.pack), words_for_bytes(report.file_bytes)));
    }
    if (!report.ignored_files.empty())
        line("", fmt::format("not part of it: {}", model::name_list(report.ignored_files)));
    line("architecture",
         config.architecture.empty()
             ? config.model_type
             : fmt::format("{} ({})", model::name_list({config.architecture}), config.model_type));
    line("parameters", report.vision_parameters == 0
                           ? grouped(report.parameters)
                           : fmt::format("{}, {} of them vision", grouped(report.parameters),
                                         grouped(report.vision_parameters)));
    line("sizes", fmt::format("vocabulary {}, hidden {}, dense {}, self-conditioning {}, {} query heads",
                              grouped(text.vocab_size), text.hidden_size, text.intermediate_size,
                              text.self_conditioning_size, text.heads));
    line("experts",
         fmt::format("{} of width {}, {} for each token", text.experts, text.expert_size, text.top_k));
    line("layers", std::to_string(text.layers.size()));
    for (const auto& [layer, numbers] : layer_kinds(text)) {
        const bool full = layer.kind == model::LayerKind::full;
        line("", fmt::format("{} {}: head {}, {} KV {}, theta {:g}, {} of {} pairs rotate{}: {}",
                             numbers.size(), full ? "full" : "sliding", layer.head_dim, layer.kv_heads,
                             layer.kv_heads == 1 ? "head" : "heads", layer.rope_theta, layer.rotated_pairs,
                             layer.head_dim / 2,
                             full ? std::string() : fmt::format(", window {}", text.sliding_window),
                             fmt::join(numbers, " ")));
    }
    line("canvas", fmt::format("{} tokens", config.canvas_length));
    line("context", fmt::format("up to {} tokens", grouped(text.max_positions)));
    if (config.vision) {
        line("vision",
             fmt::format("{} layers of {}, patch {}, {} soft tokens an image{}", config.vision->layers,
                         config.vision->hidden_size, config.vision->patch_size, config.vision->soft_tokens,
                         report.vision_parameters == 0 ? " (no weights here)" : ""));
    } else {
        line("vision", "none");
    }
}

void print_tensors(const InfoReport& report, std::ostream& out) {
    out << fmt::format("\n{:<20}{:<9}{:>8}{:>20}{:>14}\n", "tensors", "format", "count", "elements", "bytes");
    TensorSum all;
    for (const TensorSum& sum : report.tensors) {
        out << fmt::format("{:<20}{:<9}{:>8}{:>20}{:>14}\n", sum.group, sum.format, sum.tensors,
                           grouped(sum.elements), words_for_bytes(sum.bytes));
        all.tensors += sum.tensors;
        all.elements += sum.elements;
        all.bytes += sum.bytes;
    }
    out << fmt::format("{:<20}{:<9}{:>8}{:>20}{:>14}\n", "all", "", all.tensors, grouped(all.elements),
                       words_for_bytes(all.bytes));
    for (const std::string& kept : report.kept) out << fmt::format("stays bf16: {}\n", safe(kept));
    if (!report.unexpected.empty()) {
        out << fmt::format("unexpected: {}\n", model::name_list(report.unexpected));
    }
}

void print_memory(const InfoReport& report, std::ostream& out) {
    out << "\nmemory, for one sequence on the CPU\n";
    const auto line = [&](std::string_view name, std::int64_t bytes) {
        out << fmt::format("  {:<34}{:>12}\n", name, words_for_bytes(bytes));
    };
    line("weights, mapped from the files", report.weight_bytes);
    line("norms and scalars in f32", report.vector_bytes);
    line("logits of a canvas, f32", report.logits_bytes);
    for (const CacheSize& cache : report.caches) {
        line(fmt::format("cache of {} tokens, bf16", grouped(cache.context)), cache.bf16_bytes);
        line(fmt::format("cache of {} tokens, f32", grouped(cache.context)), cache.f32_bytes);
    }
    out << fmt::format("  each token beyond the window adds {} (bf16) or {} (f32)\n",
                       words_for_bytes(report.bf16_bytes_per_token),
                       words_for_bytes(report.f32_bytes_per_token));
}

void print_generation(const InfoReport& report, std::ostream& out) {
    const model::GenerationConfig& g = report.generation;
    out << fmt::format("\ngeneration{}\n",
                       report.has_generation_config ? "" : " (no generation_config.json: defaults)");
    out << fmt::format("  sampler {}, {} {:g}, at most {} steps a canvas\n", name_of_sampler(g.sampler),
                       g.sampler == model::SamplerKind::entropy_bound ? "bound" : "threshold",
                       g.sampler == model::SamplerKind::entropy_bound ? g.entropy_bound : g.threshold,
                       g.max_denoising_steps);
    out << fmt::format("  temperature {:g} down to {:g}; stops after {} equal canvases below {:g} nats\n",
                       g.t_max, g.t_min, g.stability_threshold + 1, g.confidence_threshold);
    out << fmt::format("  stop ids {}\n", report.stop_ids.empty()
                                              ? "none"
                                              : fmt::format("{}", fmt::join(report.stop_ids, ", ")));
}

}  // namespace

void print_text(const InfoReport& report, std::ostream& out) {
    print_model(report, out);
    print_tensors(report, out);
    print_memory(report, out);
    print_generation(report, out);
    if (report.problem) out << fmt::format("\ncannot be run: {}\n", report.problem->message);
}

void print_json(const InfoReport& report, std::ostream& out) {
    using nlohmann::json;
    const model::Config& config = report.config;
    const model::TextConfig& text = config.text;
    const model::GenerationConfig& g = report.generation;
    json tensors = json::array(), caches = json::array();
    for (const TensorSum& sum : report.tensors) {
        tensors.push_back({{"class", sum.group},
                           {"type", sum.format},
                           {"tensors", sum.tensors},
                           {"elements", sum.elements},
                           {"bytes", sum.bytes}});
    }
    for (const CacheSize& cache : report.caches) {
        caches.push_back(
            {{"context", cache.context}, {"bf16_bytes", cache.bf16_bytes}, {"f32_bytes", cache.f32_bytes}});
    }
    json vision;
    if (config.vision) {
        vision = {{"layers", config.vision->layers},
                  {"hidden_size", config.vision->hidden_size},
                  {"patch_size", config.vision->patch_size},
                  {"soft_tokens", config.vision->soft_tokens},
                  {"parameters", report.vision_parameters}};
    }
    const json object = {
        {"model", report.directory.string()},
        {"files", report.files},
        {"ignored_files", report.ignored_files},
        {"file_bytes", report.file_bytes},
        {"pack", report.pack.empty() ? json() : json(report.pack)},
        {"kept_bf16", report.kept},
        {"model_type", config.model_type},
        {"architecture", config.architecture},
        {"dtype", name_of(config.dtype)},
        {"quantization", config.quantization.empty() ? json() : json(config.quantization)},
        {"parameters", report.parameters},
        {"vocab_size", text.vocab_size},
        {"hidden_size", text.hidden_size},
        {"intermediate_size", text.intermediate_size},
        {"self_conditioning_size", text.self_conditioning_size},
        {"heads", text.heads},
        {"experts", text.experts},
        {"top_k", text.top_k},
        {"expert_size", text.expert_size},
        {"sliding_window", text.sliding_window},
        {"max_positions", text.max_positions},
        {"canvas_length", config.canvas_length},
        {"layers", layers_json(text)},
        {"vision", vision},
        {"tensors", tensors},
        {"unexpected", report.unexpected},
        {"memory",
         {{"weight_bytes", report.weight_bytes},
          {"vector_bytes", report.vector_bytes},
          {"logits_bytes", report.logits_bytes},
          {"caches", caches},
          {"bytes_per_token", {{"bf16", report.bf16_bytes_per_token}, {"f32", report.f32_bytes_per_token}}}}},
        {"generation",
         {{"sampler", name_of_sampler(g.sampler)},
          {"max_denoising_steps", g.max_denoising_steps},
          {"entropy_bound", shortest(g.entropy_bound)},
          {"threshold", shortest(g.threshold)},
          {"t_min", g.t_min},
          {"t_max", g.t_max},
          {"stability_threshold", g.stability_threshold},
          {"confidence_threshold", shortest(g.confidence_threshold)},
          {"max_new_tokens", g.max_new_tokens}}},
        {"stop_ids", report.stop_ids},
        {"problem", report.problem ? json(report.problem->message) : json()},
    };
    // A path or a tensor's name need not be UTF-8.
    out << object.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
}

}  // namespace dgemma::cli
