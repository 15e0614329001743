#include "cli/info.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/weight_bytes.h"
#include "engine/generator.h"
#include "files/checkpoint.h"
#include "model/kv_cache.h"
#include "model/tensor_list.h"

namespace dgemma::cli {

namespace {

void sum_tensors(const files::Checkpoint& checkpoint, const model::TensorReport& found, InfoReport& report) {
    std::unordered_map<std::string, model::TensorClass> group_of;
    for (const auto& expected : model::expected_tensors(report.config)) {
        group_of.emplace(expected.name, expected.group);
        if (!expected.other_name.empty()) group_of.emplace(expected.other_name, expected.group);
    }
    constexpr int unexpected = 100, ignored = 101;
    std::map<std::tuple<int, Encoding, Dtype>, TensorSum> sums;
    for (const std::string& name : checkpoint.names()) {
        const WeightView weight = *checkpoint.weight(name);
        const bool redundant = std::binary_search(found.ignored.begin(), found.ignored.end(), name);
        const bool foreign = std::binary_search(found.unexpected.begin(), found.unexpected.end(), name);
        const bool used = !redundant && !foreign;
        const model::TensorClass group = used ? group_of.at(name) : model::TensorClass::norms;
        const int place = used ? static_cast<int>(group) : redundant ? ignored : unexpected;
        TensorSum& sum = sums[{place, weight.encoding, weight.type}];
        sum.group = used ? std::string(model::name_of(group)) : redundant ? "ignored" : "unexpected";
        sum.format = weight.encoding == Encoding::plain ? name_of(weight.type) : name_of(weight.encoding);
        const auto grid = weight_grid(weight);
        const auto bytes = grid ? static_cast<std::int64_t>(grid->total().total()) : 0;
        sum.tensors += 1;
        sum.elements += weight.elements();
        sum.bytes += bytes;
        if (!used) continue;
        report.parameters += weight.elements();
        report.weight_bytes += bytes;
        if (group == model::TensorClass::vision) report.vision_parameters += weight.elements();
        if (weight.shape.size() == 1) report.vector_bytes += weight.elements() * std::int64_t{4};
    }
    for (auto& [key, sum] : sums) report.tensors.push_back(std::move(sum));
}

using model::KvCache, model::LayerKind;

std::int64_t bounded(double bytes) { return static_cast<std::int64_t>(std::min(bytes, 0x1p62)); }

std::int64_t cache_bytes(const model::TextConfig& text, std::int64_t context, Dtype type) {
    const std::int64_t ring = KvCache::ring_tokens(text, engine::LoadOptions{}.prefill_chunk);
    return bounded(static_cast<double>(context) * KvCache::bytes_per_token(text, LayerKind::full, type) +
                   static_cast<double>(std::min(context, ring)) *
                       KvCache::bytes_per_token(text, LayerKind::sliding, type));
}

void size_memory(InfoReport& report) {
    const model::TextConfig& text = report.config.text;
    report.logits_bytes = std::int64_t{4} * report.config.canvas_length * text.vocab_size;
    report.bf16_bytes_per_token = bounded(KvCache::bytes_per_token(text, LayerKind::full, Dtype::bf16));
    report.f32_bytes_per_token = bounded(KvCache::bytes_per_token(text, LayerKind::full, Dtype::f32));
    for (const std::int64_t context :
         {std::int64_t{1024}, std::int64_t{32768}, std::int64_t{text.max_positions}}) {
        if (context > text.max_positions ||
            (!report.caches.empty() && context == report.caches.back().context))
            continue;
        report.caches.push_back(cache_size(text, context));
    }
}

}  // namespace

CacheSize cache_size(const model::TextConfig& text, std::int64_t context) {
    return {context, cache_bytes(text, context, Dtype::bf16), cache_bytes(text, context, Dtype::f32)};
}

Result<InfoReport> inspect(const std::filesystem::path& model) {
    DGEMMA_TRY(const files::Checkpoint checkpoint, files::Checkpoint::open(model));
    InfoReport report;
    report.directory = checkpoint.path();
    for (const auto& file : checkpoint.files()) {
        report.files.push_back(file.filename().native());
        std::error_code error;
        const auto bytes = std::filesystem::file_size(file, error);
        if (!error) report.file_bytes += static_cast<std::int64_t>(bytes);
    }
    report.ignored_files = checkpoint.ignored_files();
    if (const files::Pack* pack = checkpoint.pack()) {
        const files::PackManifest& manifest = pack->manifest();
        report.pack = fmt::format("{} of {}, by {}", manifest.profile, manifest.source, manifest.creator);
        for (const files::PackTensor& tensor : manifest.tensors) {
            if (!tensor.kept.empty())
                report.kept.push_back(fmt::format("{}, because {}", tensor.name, tensor.kept));
        }
    }

    DGEMMA_TRY(report.config, model::read_config(checkpoint));
    report.has_generation_config = checkpoint.has_file("generation_config.json");
    if (report.has_generation_config) {
        DGEMMA_TRY(const std::string text, checkpoint.read_text("generation_config.json"));
        DGEMMA_TRY(report.generation, model::parse_generation_config(
                                          text, (checkpoint.path() / "generation_config.json").native()));
    }
    report.stop_ids = report.generation.eos_ids.empty() ? report.config.eos_ids : report.generation.eos_ids;

    const model::TensorReport found = model::survey_tensors(report.config, checkpoint);
    if (auto checked = model::check_tensors(report.config, checkpoint); !checked) {
        report.problem = std::move(checked).error();
    }
    report.unexpected = found.unexpected;
    sum_tensors(checkpoint, found, report);
    size_memory(report);
    return report;
}

}  // namespace dgemma::cli
