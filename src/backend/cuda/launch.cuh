// How kernels are launched and how they begin: so that the next one's blocks may settle on the card while the
// last of this one's still run.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

// Lets the next kernel's blocks come while this one's still run.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
// Waits for the kernel before to be over. Before that nothing may be touched that an earlier kernel writes or
// reads.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// The first thing in every kernel that has nothing to do without the one before.
__device__ __forceinline__ void begin_kernel() {
    allow_next_kernel();
    wait_for_previous_kernel();
}

// What a launch gives a block of shared memory beyond what the kernel names.
__device__ __forceinline__ std::uint8_t* launched_shared_memory() {
    extern __shared__ std::uint8_t memory[];
    return memory;
}

// How many clusters of so many blocks in a row of a kernel run at a time, at least 1. Keeps a failure of its
// own. What a block may have of shared memory is set before.
template <class... Parameters>
int most_clusters(Context& c, const char* doing, void (*kernel)(Parameters...), unsigned threads,
                  std::size_t shared, unsigned blocks) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks * 64);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    c.check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), doing);
    return clusters > 1 ? clusters : 1;
}

// Does nothing after a failure; keeps one of its own. cluster: so many neighbouring blocks share copies.
template <class... Parameters, class... Arguments>
void launch_clusters(Context& c, const char* doing, void (*kernel)(Parameters...), dim3 grid,
                     unsigned threads, std::size_t shared, dim3 cluster, const Arguments&... arguments) {
    if (c.failed()) return;
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (c.take_turn_early()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster.x * cluster.y * cluster.z > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster.x;
        attributes[count].val.clusterDim.y = cluster.y;
        attributes[count++].val.clusterDim.z = cluster.z;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = c.stream();
    config.attrs = attributes;
    config.numAttrs = count;
    c.check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), doing);
}
template <class... Parameters, class... Arguments>
void launch(Context& c, const char* doing, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared, const Arguments&... arguments) {
    launch_clusters(c, doing, kernel, grid, threads, shared, dim3(1), arguments...);
}

}  // namespace dgemma::backend::cuda
