// Does a model fit this machine's memory, and how long a context with it? For one sequence on the CPU.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"
#include "cli/arguments.h"
#include "engine/generator.h"
#include "files/checkpoint.h"

namespace dgemma::cli {

// Bytes. The weights are mapped from disk, but every step reads nearly all of them: what does not stay in
// memory is read again, at the disk's speed.
struct MemoryFit {
    std::uint64_t weights = 0;  // those the model uses
    std::uint64_t logits = 0;   // of a canvas, f32
    std::uint64_t scratch = 0;  // activations of a pass, roughly; norms and scalars in f32
    Dtype kv = Dtype::f32;
    std::uint64_t rings = 0;             // keys and values of the sliding layers, when they are full
    std::uint64_t token = 0;             // of the full layers, a token
    std::int64_t longest = 0;            // tokens that the checkpoint, or --ctx, allows
    std::int64_t least = 0;              // tokens that the shortest conversation takes: a canvas
    std::optional<std::uint64_t> limit;  // --memory, else the machine's or its container's

    [[nodiscard]] std::uint64_t need(std::int64_t context) const;
    // Tokens of context that fit, at most `longest`; 0: not even the least.
    [[nodiscard]] std::int64_t largest_context() const;
};

// Errors: those of the files and of config.json; usage (--memory is no size).
Result<MemoryFit> fit_of(const std::filesystem::path& model, const Arguments& arguments);

// Before loading: what the model needs. On a GPU it is not held against this machine's memory. Errors: those
// of config.json, usage; io, with the numbers, where not even the least context, or the --ctx asked for,
// fits.
Result<MemoryFit> fit_for_loading(const files::Checkpoint& checkpoint, const Arguments& arguments);

// `info --fit`: a line a number, or one JSON object.
void print_fit(const MemoryFit& fit, std::ostream& out);
void print_fit_json(const MemoryFit& fit, std::ostream& out);

// Errors: io, with the numbers, where `context` tokens do not fit.
Status check_memory(const MemoryFit& fit, std::int64_t context);

// "24G", "24GiB", "1.5 TiB", "512MB" (all of 1024) or a number of bytes. Empty: none of these.
std::optional<std::uint64_t> read_size(std::string_view text);

}  // namespace dgemma::cli
