// Writes a pack aside and puts it in its place at the end, whole or not at all.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "files/pack.h"
#include "files/quantizers.h"

namespace dgemma::files {

// A tensor of the pack to be, and where its rows come from.
struct PackItem {
    std::string name, group, kept;  // as in PackTensor
    WeightForm form;
};

// The writer of one pack. It works in TARGET.partial-PID beside the target; commit() renames that to the
// target in one step. Without commit, also when the process is killed, the target is what it was before. What
// a killed process left aside is taken away by the next writer of the same target.
class PackWriter {
  public:
    // force: a pack that is already there will be replaced. needed_bytes: the blob's size, to be told before
    // any work that the disk is too small. Errors: usage (something is there already and force is off, or it
    // is no pack), io (no room, no permission; says so in a sentence).
    static Result<std::unique_ptr<PackWriter>> create(const std::filesystem::path& target, bool force,
                                                      std::uint64_t needed_bytes);
    ~PackWriter();
    PackWriter(const PackWriter&) = delete;
    PackWriter& operator=(const PackWriter&) = delete;

    // Encodes a tensor and writes it, in pieces of a few MB, while the piece before goes to the disk. Counts
    // the bytes of the tensor as bf16 in `run`. Errors: those of WeightEncoder::encode; usage (a name twice);
    // io (the disk is full, or refuses); cancelled.
    Status add(const PackItem& item, const RowSource& rows, ThreadPool& pool, const LongRun& run);

    // A text file beside the weights; `name` is a plain file name.
    Status add_file(std::string_view name, std::string_view text);

    // Writes the manifest, waits for the disk and renames. `about` gives creator, source, profile and
    // formats.
    Status commit(PackManifest about);

    [[nodiscard]] const std::vector<PackTensor>& tensors() const { return tensors_; }  // as of now
    [[nodiscard]] std::uint64_t blob_bytes() const { return end_; }

    // The blob's size for a list of tensors.
    static std::uint64_t blob_bytes_of(const std::vector<PackItem>& items);

  private:
    // Bytes on their way to the disk: consecutive ones of up to three parts of a tensor.
    struct Piece {
        std::size_t tensor = 0;
        Buffer bytes;
        struct Span {
            std::size_t part = 0, begin = 0, count = 0;
            std::uint64_t offset = 0;  // in the blob
        };
        std::vector<Span> spans;
    };

    PackWriter() = default;
    Buffer take_buffer(std::size_t bytes);
    Status submit(Piece piece);
    Status drain();
    void write_pieces();
    Status write_piece(const Piece& piece);
    Status put_in_place();

    std::filesystem::path target_, aside_;
    bool force_ = false, committed_ = false;
    int blob_ = -1;
    std::uint64_t end_ = 0;
    std::vector<PackTensor> tensors_;
    std::map<std::string, PackFile> files_;

    // The thread that hashes and writes, and what it alone touches.
    std::thread thread_;
    std::deque<std::pair<std::uint64_t, std::size_t>> on_the_way_;  // offset and bytes
    std::size_t on_the_way_bytes_ = 0;
    // mutex_ is over everything below.
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Piece> waiting_;
    std::vector<Buffer> spare_;  // used again: giving them back and asking anew would tear the heap apart
    bool busy_ = false, ending_ = false;
    std::optional<Error> failure_;
    std::vector<std::array<Sha256, std::size(kPackParts)>> hashes_;
};

}  // namespace dgemma::files
