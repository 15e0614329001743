// launch.cuh of src/backend/cuda on the emulated machine: a launch runs the grid to its end.
#pragma once

#include <functional>
#include <utility>

#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

// What the kernel before does, at the last moment: when somebody first waits for it.
inline std::function<void()> previous_kernel;
inline void wait_for_previous_kernel() {
    if (previous_kernel) std::exchange(previous_kernel, {})();
}
inline void allow_next_kernel() {}
inline void begin_kernel() { wait_for_previous_kernel(); }
// Not at a multiple of 1024, which nobody promises.
inline std::uint8_t* launched_shared_memory() { return emulated::machine.current->block->memory + 48; }

template <class Problem>
void launch(Context&, const char*, void (*kernel)(Problem), unsigned blocks, unsigned threads, int,
            const Problem& p) {
    emulated::run_grid(blocks, threads, [&] { kernel(p); });
}

}  // namespace dgemma::backend::cuda
