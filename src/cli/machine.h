// What this machine is: for `doctor`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/host_memory.h"

namespace dgemma::cli {

struct Machine {
    std::string processor;  // as the kernel names it; may be empty
    std::vector<std::string>
        instruction_sets;  // those that matter here and that the processor has, weakest first
    int logical_processors = 1;
    int physical_cores = 1;  // that this process may use
    HostMemory memory;
    std::optional<std::string> nvidia_driver;  // its version, where there is one
};

Machine inspect_machine();

}  // namespace dgemma::cli
