// What this machine is: for `doctor`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dgemma::cli {

struct Memory {
    std::optional<std::uint64_t> all;        // bytes, or the limit of the container where that is less
    std::optional<std::uint64_t> available;  // bytes that can be had without swapping
};

struct Machine {
    std::string processor;  // as the kernel names it; may be empty
    std::vector<std::string>
        instruction_sets;  // those that matter here and that the processor has, weakest first
    int logical_processors = 1;
    int physical_cores = 1;  // that this process may use
    Memory memory;
    std::optional<std::string> nvidia_driver;  // its version, where there is one
};

Machine inspect_machine();
Memory memory_of_machine();  // that part alone

}  // namespace dgemma::cli
