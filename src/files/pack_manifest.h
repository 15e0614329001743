// The manifest of a pack, dgemma-pack.json: what is in the blob and where. docs/PACK.md describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/weight_bytes.h"
#include "base/weight_view.h"

namespace dgemma::files {

inline constexpr std::string_view kPackManifestName = "dgemma-pack.json";
inline constexpr std::string_view kPackBlobName = "weights.bin";
inline constexpr std::int64_t kPackVersion = 1;
inline constexpr std::uint64_t kPackAlignment = 64;  // of every part of a tensor within the blob

// Consecutive bytes of the blob; none where an encoding has no such part.
struct PackPart {
    std::uint64_t offset = 0, bytes = 0;
    std::string sha256;  // 64 lower-case hexadecimal digits
};

struct PackTensor {
    std::string name;   // as the checkpoint calls it (contract/checkpoints.md 1)
    std::string group;  // what it is for: "experts", "attn", ...
    Encoding encoding = Encoding::plain;
    Layout layout = Layout::rows;
    Dtype type = Dtype::bf16;  // of plain elements
    Shape shape;
    PackPart codes, scales, biases, globals;
    std::string kept;  // why it is plainer than the rest of its class; empty: it is not
};

// A text file beside the blob.
struct PackFile {
    std::uint64_t bytes = 0;
    std::string sha256;
};

struct PackManifest {
    std::string creator;                         // "dgemma 0.1.0"
    std::string source;                          // the model it was made of; of random weights the command
    std::string profile;                         // "q4"
    std::map<std::string, std::string> formats;  // class -> format, for people
    std::uint64_t blob_bytes = 0;
    std::vector<PackTensor> tensors;  // in the order of the blob
    std::map<std::string, PackFile> files;

    // Random weights in real shapes, as the command synth makes them: to measure with, and with nothing to
    // say.
    [[nodiscard]] bool synthetic() const { return source.starts_with("synth "); }
};

// Canonical JSON: keys sorted, one line a tensor, the same bytes for the same manifest on every machine. Its
// "checksum" is the SHA-256 of the text with that value left empty.
std::string write_manifest(const PackManifest& manifest);

// Reads it back, whole or not at all. `where` names it in messages. Errors: unsupported, for a version newer
// than ours; invalid, for anything else that is not exactly what a writer makes: broken JSON, a missing or
// mistyped key, an unknown encoding, a name twice, a checksum that does not fit, a part whose size is not
// what shape and encoding make it, that is not aligned, reaches out of the blob, or overlaps another.
Result<PackManifest> parse_manifest(std::string_view text, std::string_view where);

// The parts of a tensor in the order in which they stand in the blob.
struct NamedPart {
    std::string_view name;  // "codes", "scales", "biases", "globals"
    PackPart PackTensor::*part;
    std::uint64_t WeightBytes::*bytes;
};
inline constexpr NamedPart kPackParts[] = {
    {"codes", &PackTensor::codes, &WeightBytes::codes},
    {"scales", &PackTensor::scales, &WeightBytes::scales},
    {"biases", &PackTensor::biases, &WeightBytes::biases},
    {"globals", &PackTensor::globals, &WeightBytes::globals},
};

}  // namespace dgemma::files
