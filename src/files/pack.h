// dgemma's own form of a model on disk: a directory with a manifest, one blob of weights ready to be mapped,
// and the model's text files (docs/PACK.md).
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "base/weight_view.h"
#include "files/mapping.h"
#include "files/pack_manifest.h"

namespace dgemma::files {

// Whether a directory is a pack, sound or not: it holds a manifest.
bool is_pack(const std::filesystem::path& directory);

// How a long run tells how far it is, and is told to stop. The bytes are of whatever the run says it counts.
struct LongRun {
    std::function<void(std::uint64_t bytes)> progress;  // more bytes are done; from any thread; may be empty
    const std::atomic<bool>* stop = nullptr;            // true: end with an error of kind cancelled

    void advance(std::uint64_t bytes) const {
        if (progress) progress(bytes);
    }
    [[nodiscard]] bool stopped() const { return stop != nullptr && stop->load(); }
};

// An open pack. Weights are views of its mapping and live as long as it does, also after a move.
class Pack {
  public:
    // Reads the manifest and maps the blob; the weights' bytes are not looked at, so it takes no time.
    // Errors: those of parse_manifest; not_found, where the blob is missing; invalid, where it has another
    // size than the manifest says (it was cut short).
    static Result<Pack> open(const std::filesystem::path& directory);

    [[nodiscard]] const PackManifest& manifest() const { return manifest_; }
    [[nodiscard]] std::optional<WeightView> weight(std::string_view name) const;
    [[nodiscard]] WeightView view_of(const PackTensor& tensor) const;
    [[nodiscard]] std::filesystem::path blob_path() const { return directory_ / kPackBlobName; }

    // Reads every byte and compares it with the SHA-256 of the manifest, also of the text files. Counts the
    // blob's bytes. Errors: invalid, naming the tensors and files that differ; cancelled.
    [[nodiscard]] Status verify(ThreadPool& pool, const LongRun& run) const;

  private:
    std::filesystem::path directory_;
    PackManifest manifest_;
    Mapping blob_;
    std::map<std::string, std::size_t, std::less<>> index_;  // into manifest_.tensors
};

}  // namespace dgemma::files
