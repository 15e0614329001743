// launch.cuh of src/backend/cuda on the emulated machine: a launch runs the grid to its end.
#pragma once

#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

inline void begin_kernel() {}
inline void allow_next_kernel() {}
inline void wait_for_previous_kernel() {}
// Not at a multiple of 1024, which nobody promises.
inline std::uint8_t* launched_shared_memory() { return emulated::machine.current->block->memory + 48; }

template <class Problem>
void launch(Context&, const char*, void (*kernel)(Problem), unsigned blocks, unsigned threads, int,
            const Problem& p) {
    emulated::run_grid(blocks, threads, [&] { kernel(p); });
}

}  // namespace dgemma::backend::cuda
