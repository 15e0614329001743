// How kernels are launched and how they begin: so that the next one's blocks may settle on the card while the
// last of this one's still run.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

// The first thing in every kernel, before it touches what an earlier kernel writes or reads: lets the next
// kernel come, and waits for the one before to be over.
__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Does nothing after a failure; keeps one of its own.
template <class... Parameters, class... Arguments>
void launch(Context& c, const char* doing, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared, const Arguments&... arguments) {
    if (c.failed()) return;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = c.stream();
    config.attrs = &early;
    config.numAttrs = c.take_turn_early() ? 1 : 0;
    c.check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), doing);
}

}  // namespace dgemma::backend::cuda
