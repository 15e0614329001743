// Executes a record again and compares (engine/record.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/generator.h"

namespace dgemma::engine {

// The first line of a run.
struct RecordHeader {
    std::string version, model;
    int vocabulary = 0;
    LoadOptions load;
    int max_running = 0;
    std::uint64_t memory_bytes = 0;
    int rewind_tokens = 0;
    int max_conversations = 0;
};

// Of the first run in a record. Errors: io, invalid (no record, or of another version).
Result<RecordHeader> read_record_header(const std::filesystem::path& file);

struct ReplayReport {
    int runs = 0;                // a server that was restarted appends another run
    std::uint64_t requests = 0;  // submitted again
    std::uint64_t lines = 0;     // that came out the same
    bool cut_off = false;        // the last line is incomplete: whoever wrote it was killed
    struct Difference {
        std::uint64_t line = 0;  // of the file, from 1
        std::string what;        // the member that differs, or what is missing
        std::string recorded, now;
    };
    std::optional<Difference> difference;  // the first one; the replay stops there
};

// Runs everything that `file` records on the checkpoint's model, loaded as the record says, passes and all,
// up to its end or to the first difference. adjust: may change how the model is loaded (other threads,
// another backend). progress: told the lines done so far now and then. Errors: io, invalid (a line that is no
// record, with its number; the record of another model), those of load_model.
Result<ReplayReport> replay(const std::filesystem::path& file, const files::Checkpoint& checkpoint,
                            const std::function<void(LoadOptions&)>& adjust = {},
                            const std::function<void(std::uint64_t lines)>& progress = {});

}  // namespace dgemma::engine
