// What a scheduler has done so far: the numbers behind /metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace dgemma::engine {

// Counts of durations, in seconds.
struct Histogram {
    static constexpr std::array<double, 14> bounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                      0.25,  0.5,    1,     2.5,  5,     10,   30};
    // Durations of at most bounds[i] and more than bounds[i - 1]; the last one counts what is longer than all
    // bounds. Not cumulative.
    std::array<std::uint64_t, bounds.size() + 1> counts{};
    std::uint64_t count = 0;
    double sum = 0;

    void add(double seconds);
};

struct SchedulerStats {
    // --- now
    int queued = 0;                    // admitted and not yet started
    int running = 0;                   // started and not yet ended
    int conversations = 0;             // whose keys and values are held, those of running requests included
    std::uint64_t cache_bytes = 0;     // keys and values held
    std::uint64_t reserved_bytes = 0;  // what running requests may grow to, logits included
    std::uint64_t unused_logits_bytes = 0;  // kept for the next request; the first to be given up
    std::uint64_t memory_bytes = 0;         // the limit of all these together
    bool draining = false;
    bool recording = false;  // false also after the file of the record could not be written

    // --- since the start
    std::uint64_t submitted = 0;                          // admitted requests
    std::map<std::string, std::uint64_t> refused;         // "usage", "context_length", "memory", "overloaded"
    std::map<std::string, std::uint64_t> ended;           // by name_of(FinishReason)
    std::map<std::string, std::uint64_t> failed;          // by name_of(ErrorKind)
    std::map<std::string, std::uint64_t> reuse;           // requests by name_of(Reuse)
    std::map<std::string, std::uint64_t> reprefills;      // prompts that a cache could not help, by reason
    std::map<std::string, std::uint64_t> block_stops;     // blocks by stop rule
    std::map<std::string, std::uint64_t> guards;          // blocks in which a guard fired, by its name
    std::uint64_t encode_passes = 0, denoise_passes = 0;  // calls of the model that were really made
    std::uint64_t denoise_steps = 0;  // steps of all requests: more than passes when shared
    std::uint64_t prompt_tokens = 0, reused_tokens = 0, encoded_tokens = 0, output_tokens = 0;
    std::uint64_t blocks = 0;
    std::uint64_t evictions = 0;        // conversations forgotten to make room
    std::uint64_t forks = 0;            // conversations begun as a copy of another one's prefix
    std::uint64_t shared_prefills = 0;  // requests that waited for another to encode what both begin with
    Histogram queue_seconds;            // from admission to the start
    Histogram first_block_seconds;      // from admission to the first block
    Histogram request_seconds;          // from admission to the end
    Histogram step_seconds;             // of a denoising pass
};

}  // namespace dgemma::engine
