#include "backend/cpu/instruction_sets.h"

#include "backend/cpu/cpu.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dgemma::backend {

namespace cpu {

namespace {

std::vector<InstructionSet> runnable() {
    std::vector<InstructionSet> out = {{"baseline", &plain_baseline, nullptr}};
#if defined(__x86_64__)
    // Each set holds the ones before it, so that the list can be cut anywhere.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return out;
    out.push_back({"avx2", &plain_avx2, &dot_avx2});
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
        return out;
    }
    out.push_back({"avx512", &plain_avx512, &dot_avx512bw});
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) return out;
    out.push_back({"avx512_bf16_vnni", &plain_avx512, &dot_avx512});
#elif defined(__aarch64__)
    out.push_back({"neon", &plain_neon, &dot_neon});
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return out;
    out.push_back({"neon_dot", &plain_neon, &dot_neon_dot});
    const unsigned long more = getauxval(AT_HWCAP2);
    if ((more & HWCAP2_I8MM) == 0 || (more & HWCAP2_BF16) == 0) return out;
    out.push_back({"neon_i8mm_bf16", &plain_neon, &dot_neon_i8mm_bf16});
#endif
    return out;
}

}  // namespace

std::span<const InstructionSet> instruction_sets() {
    static const std::vector<InstructionSet> sets = runnable();
    return sets;
}

const InstructionSet* instruction_set_named(std::string_view name) {
    const std::span<const InstructionSet> sets = instruction_sets();
    if (name.empty()) return &sets.back();
    for (const InstructionSet& set : sets) {
        if (set.name == name) return &set;
    }
    return nullptr;
}

}  // namespace cpu

std::vector<std::string_view> available_isas() {
    std::vector<std::string_view> names;
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) names.push_back(set.name);
    return names;
}

}  // namespace dgemma::backend
