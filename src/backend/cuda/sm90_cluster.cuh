// Blocks that share what they copy: several of one cluster on neighbouring multiprocessors.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "backend/cuda/device.cuh"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ int cluster_rank() {
    std::uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return static_cast<int>(rank);
}
// A barrier of all threads of a cluster, in two halves. Shared memory written before is seen after.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// The same place in the shared memory of block `rank`.
__device__ __forceinline__ std::uint32_t address_in(const void* own, int rank) {
    std::uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
    return address;
}
__device__ __forceinline__ void barrier_arrive_at(std::uint32_t address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(address) : "memory");
}
// Of numbers for another block: they are stored, the block's barrier is told, and whoever waited for it that
// way sees them.
__device__ __forceinline__ void store_at(std::uint32_t address, int4 x) {
    asm volatile("st.shared::cluster.v4.s32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}
__device__ __forceinline__ void barrier_release_at(std::uint32_t address) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(address) : "memory");
}
__device__ __forceinline__ void barrier_acquire(std::uint64_t* barrier, int phase) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
        "r"(phase)
        : "memory");
}
__device__ __forceinline__ float4 load_from(std::uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ __forceinline__ float2 load_pair_from(std::uint32_t address) {
    float2 x;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(address)
                 : "memory");
    return x;
}

// As copy_box, with addresses of shared memory; where `All`, to the same place of every block in `mask`, and
// word of it to the same barrier of each.
template <bool All>
__device__ __forceinline__ void copy_box_at(std::uint16_t mask, std::uint32_t to, const CUtensorMap* map,
                                            int column, int row, std::uint32_t barrier) {
    if constexpr (All) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(to),
            "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(to),
            "l"(map), "r"(column), "r"(row), "r"(barrier)
            : "memory");
    }
}
__device__ __forceinline__ void barrier_expect_at(std::uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait_at(std::uint32_t barrier, int phase) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

#endif

}  // namespace dgemma::backend::cuda
