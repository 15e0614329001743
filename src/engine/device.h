// Where a model runs: what --device says, and what there is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/generator.h"

namespace dgemma::engine {

struct Device {
    BackendKind backend = BackendKind::plain;  // plain or cuda
    int index = 0;                             // of several GPUs
};

// name: "cpu"; "cuda", the first GPU we run on; "cuda:N"; "auto", a GPU where this build and the machine have
// one that works, else the CPU. Errors: usage (another name), unsupported (a GPU was asked for, and says why
// there is none).
Result<Device> choose_device(std::string_view name);

struct Gpu {
    int index = 0;
    std::string name;
    int major = 0, minor = 0;  // compute capability
    std::uint64_t memory_bytes = 0, free_bytes = 0;
    bool usable = false;
};
// Errors: unsupported, with a sentence that says why there is none.
Result<std::vector<Gpu>> list_gpus();

}  // namespace dgemma::engine
