// `info`: what is in a checkpoint, and the memory it will need.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace dgemma::cli {

// The tensors of one class in one format.
struct TensorSum {
    std::string group;   // a model::TensorClass by name, "unexpected" or "ignored"
    std::string format;  // an element type ("bf16"), or the encoding of a pack's tensors ("affine4")
    std::int64_t tensors = 0, elements = 0, bytes = 0;
};

// The bytes of keys and values at one length of context.
struct CacheSize {
    std::int64_t context = 0;  // tokens
    std::int64_t bf16_bytes = 0, f32_bytes = 0;
};

struct InfoReport {
    std::filesystem::path directory;
    std::vector<std::string> files;  // those with weights, by name
    std::vector<std::string> ignored_files;
    std::int64_t file_bytes = 0;
    std::string pack;               // of a pack, "q4 of org/name, by dgemma 0.1.0"; else empty
    std::vector<std::string> kept;  // tensors of a pack that are plainer than their class, with the reason

    model::Config config;
    model::GenerationConfig generation;
    bool has_generation_config = false;
    std::vector<int> stop_ids;  // generation_config's, else config's

    std::vector<TensorSum> tensors;  // in the order of model::TensorClass, then the two others
    std::int64_t parameters = 0;     // elements of the tensors that are used
    std::int64_t vision_parameters = 0;
    std::vector<std::string> unexpected;

    // Memory: the weights stay in the mapped files; what comes on top for one sequence on the CPU.
    std::int64_t weight_bytes = 0;  // of the tensors that are used
    std::int64_t vector_bytes = 0;  // f32 copies of the one-dimensional ones
    std::int64_t logits_bytes = 0;  // a canvas of f32 logits
    std::vector<CacheSize>
        caches;  // at 1,024 and 32,768 tokens where the model allows them, and at its limit
    std::int64_t bf16_bytes_per_token = 0, f32_bytes_per_token = 0;  // beyond the sliding window

    std::optional<Error> problem;  // why this checkpoint cannot be run although it can be described
};

// What a context of so many tokens takes when it is full.
CacheSize cache_size(const model::TextConfig& text, std::int64_t context);

// Opens what locate_model found. Errors: those of Checkpoint::open, parse_config and parse_generation_config.
// Weights that do not fit, or in a form that we cannot run, are reported as `problem`.
Result<InfoReport> inspect(const std::filesystem::path& model);

void print_text(const InfoReport& report, std::ostream& out);
void print_json(const InfoReport& report, std::ostream& out);  // one object, one line

}  // namespace dgemma::cli
