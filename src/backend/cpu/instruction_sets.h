// Which tables of kernels go together under one name, and which of them this machine can run.
#pragma once

#include <span>
#include <string_view>

#include "backend/cpu/dot_kernels.h"
#include "backend/cpu/plain_kernels.h"

namespace dgemma::backend::cpu {

struct InstructionSet {
    std::string_view name;
    const PlainKernels* plain = nullptr;
    const DotKernels* dots = nullptr;  // null: none
};

// Those this machine runs, weakest first; "baseline" at least.
std::span<const InstructionSet> instruction_sets();

// The one of this name, the best for an empty name; null where the machine cannot run it.
const InstructionSet* instruction_set_named(std::string_view name);

}  // namespace dgemma::backend::cpu
