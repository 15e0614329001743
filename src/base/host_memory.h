// How much memory this machine lets the process use.
#pragma once

#include <cstdint>
#include <optional>

namespace dgemma {

// Bytes; nothing where the system does not say.
struct HostMemory {
    std::optional<std::uint64_t> all;  // the machine's, or the limit of the container where that is less
    std::optional<std::uint64_t> available;  // that can be had without swapping
};

HostMemory host_memory();

}  // namespace dgemma
