#include "cli/machine.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/thread_pool.h"

namespace dgemma::cli {

namespace {

// What follows "NAME :" in a file of such lines, as /proc has them; empty where there is none.
std::string field(const char* path, std::string_view name) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        const std::size_t colon = line.find(':');
        if (!line.starts_with(name) || colon == std::string::npos) continue;
        const std::size_t key_end = line.find_last_not_of(" \t", colon - 1);
        if (key_end + 1 != name.size()) continue;
        const std::size_t start = line.find_first_not_of(" \t", colon + 1);
        return start == std::string::npos ? "" : line.substr(start);
    }
    return {};
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> out;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) out.emplace_back("sse4.2");
    if (__builtin_cpu_supports("avx")) out.emplace_back("avx");
    if (__builtin_cpu_supports("fma")) out.emplace_back("fma");
    if (__builtin_cpu_supports("avx2")) out.emplace_back("avx2");
    if (__builtin_cpu_supports("avx512f")) out.emplace_back("avx512f");
    if (__builtin_cpu_supports("avx512bw")) out.emplace_back("avx512bw");
    if (__builtin_cpu_supports("avx512vl")) out.emplace_back("avx512vl");
    if (__builtin_cpu_supports("avx512vnni")) out.emplace_back("avx512vnni");
    if (__builtin_cpu_supports("avx512bf16")) out.emplace_back("avx512bf16");
#elif defined(__aarch64__)
    out.emplace_back("neon");  // part of the architecture
#endif
    return out;
}

std::optional<std::string> nvidia_driver() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    if (!std::getline(file, line)) return std::nullopt;
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...": the first word that begins with a
    // digit.
    std::istringstream words(line);
    for (std::string word; words >> word;) {
        if (word[0] >= '0' && word[0] <= '9') return word;
    }
    return "unknown";
}

}  // namespace

Machine inspect_machine() {
    Machine out;
    out.processor = field("/proc/cpuinfo", "model name");
    out.instruction_sets = instruction_sets();
    out.logical_processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    out.physical_cores = ThreadPool::default_threads();
    out.memory = host_memory();
    out.nvidia_driver = nvidia_driver();
    return out;
}

}  // namespace dgemma::cli
