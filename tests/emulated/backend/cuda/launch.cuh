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

struct dim3 {
    explicit dim3(unsigned count) : x(count) {}
    unsigned x;
};
template <class Problem>
void launch_clusters(Context&, const char*, void (*kernel)(Problem), dim3 blocks, unsigned threads, int,
                     dim3 cluster, const Problem& p) {
    emulated::run_grid(
        blocks.x, threads, [&] { kernel(p); }, cluster.x);
}
template <class Problem>
void launch(Context& c, const char* doing, void (*kernel)(Problem), unsigned blocks, unsigned threads,
            int shared, const Problem& p) {
    launch_clusters(c, doing, kernel, dim3(blocks), threads, shared, dim3(1), p);
}
template <class Problem>
int most_clusters(Context&, const char*, void (*)(Problem), unsigned, int, int) {
    return 1 << 20;  // all blocks of a grid run at a time
}

}  // namespace dgemma::backend::cuda
