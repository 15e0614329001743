// Does a device compute what the CPU computes? One prefill and two denoising steps on both, compared stage by
// stage.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/generator.h"
#include "files/checkpoint.h"

namespace dgemma::engine {

struct VerifyOptions {
    LoadOptions device;   // what is judged
    bool scalar = false;  // against the scalar oracle, and not the CPU's threaded f32 kernels
    int layers = 0;       // the first so many; 0: as many as the CPU computes in about `seconds`
    double seconds = 60;
    int prompt_tokens = 64;
    std::uint64_t seed = 0;
    bool keep_values = false;  // Verification::device_values and cpu_values
    std::function<void(const std::string& what)> progress;
};

// All that a side computed: "step_1.layer_03.attention" -> [rows, values.size() / rows]. Of the logits
// ("step_1.logits", divided by the temperature) some rows.
struct StageValues {
    std::int64_t rows = 0;
    std::vector<float> values;
};
using AllValues = std::map<std::string, StageValues>;

// How far a stage's numbers are apart, over all rows. Of several layers, those of the worst one.
struct StageDifference {
    std::string pass, stage;  // "prefill", "attention"
    int layer = -1;           // -1: belongs to none
    double largest = 0;       // of |device - CPU|
    double relative_rms = 0;  // |device - CPU| / |CPU|
    double cosine = 1;
    std::int64_t broken = 0;  // numbers of the device that are not finite
};

// Of the head in one step.
struct HeadDifference {
    std::string pass;
    double argmax_agreement = 0;  // share of rows
    double mean_kl = 0;  // nats, of the CPU's distribution from the device's, over the rows looked at
    double largest_kl = 0;
    double entropy = 0;  // the largest difference of a row's
};

struct Verification {
    std::string device;
    int layers = 0, all_layers = 0;
    std::vector<StageDifference> stages;
    std::vector<HeadDifference> heads;
    AllValues device_values, cpu_values;  // where they were asked for
};

// The CPU rounds nothing, as with --exact. Errors: those of loading and running; usage.
Result<Verification> verify(const files::Checkpoint& checkpoint, const VerifyOptions& options);

}  // namespace dgemma::engine
