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

// Gives pages that are free between others in use back to the system, where the C library does not do so by
// itself. Takes about a millisecond for tens of MiB.
void give_back_free_memory();

}  // namespace dgemma
