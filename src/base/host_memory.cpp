#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace dgemma {

namespace {

// A file that holds one number ("max", where there is no limit, is none).
std::optional<std::uint64_t> number_in(const char* path) {
    std::ifstream file(path);
    std::uint64_t number = 0;
    return file >> number ? std::optional(number) : std::nullopt;
}

}  // namespace

HostMemory host_memory() {
    HostMemory out;
    std::ifstream file("/proc/meminfo");  // lines such as "MemTotal:  16303428 kB"
    std::string line, name;
    std::uint64_t kibibytes = 0;
    while (file >> name >> kibibytes && std::getline(file, line)) {
        if (name == "MemTotal:") out.all = kibibytes * 1024;
        if (name == "MemAvailable:") out.available = kibibytes * 1024;
    }
    const auto limit = number_in("/sys/fs/cgroup/memory.max");
    if (limit && (!out.all || *limit < *out.all)) {
        out.all = limit;
        const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current").value_or(0);
        const std::uint64_t left = *limit > used ? *limit - used : 0;
        out.available = std::min(out.available.value_or(left), left);
    }
    return out;
}

void give_back_free_memory() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

}  // namespace dgemma
