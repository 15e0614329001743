// Hopper's own instructions: barriers that count bytes, the tensor copy engine, warpgroups.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "backend/cuda/device.cuh"
#include "backend/cuda/sm90_wgmma.cuh"
#include "backend/cuda/tensor_map.h"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// From `shared` to the next multiple of 1024. Added to the pointer, which the compiler then still knows to be
// of shared memory.
__device__ __forceinline__ std::uint32_t padding_to_1024(const void* shared) {
    return (1024 - shared_address(shared) % 1024) % 1024;
}

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// After the barriers of a block were made: the copy engine sees them.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile("fence.proxy.async;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives when the thread's asynchronous copies so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(barrier))
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, int phase) {
    const std::uint32_t address = shared_address(barrier);
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(address),
        "r"(phase)
        : "memory");
}

// One box at (column, row) to shared memory; the barrier counts its bytes.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int column, int row,
                                         std::uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3}], "
        "[%4];\n" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}
// Asks for a box to be in the second-level cache soon.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int column, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];\n" ::"l"(&map), "r"(column),
                 "r"(row)
                 : "memory");
}
// Between ordinary accesses and the copy engine's (or the matrix units') to the same shared memory. Without
// its restriction to that, a fence costs a round trip to the second-level cache.
__device__ __forceinline__ void fence_copy_engine() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ __forceinline__ void warpgroup_begin() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int Left>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Left) : "memory");
}
// Keeps the compiler from moving registers of a running multiplication.
template <int Count>
__device__ __forceinline__ void hold(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// A barrier of the threads of one multiplying warpgroup, 0 and on.
__device__ __forceinline__ void warpgroup_barrier(int warpgroup) {
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + warpgroup) : "memory");
}
// The same of two of them.
__device__ __forceinline__ void both_warpgroups_barrier() { asm volatile("bar.sync 3, 256;\n" ::: "memory"); }
// A counter of what all blocks have written: what was written before an addition, by this thread or by those
// it met at a barrier, is seen after a load that sees the addition.
__device__ __forceinline__ int load_acquire(const std::int32_t* counter) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
}
__device__ __forceinline__ void add_one_release(std::int32_t* counter) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(counter) : "memory");
}
template <int Registers>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
}

// A tile of 128-byte rows as a copy with 128-byte swizzle leaves it, for the matrix unit. The address is a
// multiple of 1024 plus the start inside a row. Rows of k-contiguous elements: groups of eight rows follow
// each other at 1024 bytes, and the next 16 k are 32 bytes on. Rows of n-contiguous elements (B by rows):
// groups of eight k at 1024 bytes, blocks of 64 n at `block` bytes, and the next 16 k are 2048 bytes on.
// In two words: the lower one, to which a step of k may be added, and the whole.
__device__ __forceinline__ std::uint32_t tile_descriptor_word(std::uint32_t tile, int block = 16) {
    return (tile & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(block >> 4) << 16;
}
// Of a value that all lanes of a warp have alike: in a register that the warp has once, where the matrix
// instruction wants its descriptors. The compiler cannot know it of what comes out of a loop with a wait.
__device__ __forceinline__ std::uint32_t uniform(std::uint32_t x) { return __reduce_or_sync(0xFFFFFFFFu, x); }
__device__ __forceinline__ std::uint64_t tile_descriptor_of(std::uint32_t word) {
    return std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32 | word;
}

// Transposes an 8 x 8 matrix of 16-bit elements spread over a warp as a matrix fragment.
__device__ __forceinline__ std::uint32_t transpose8(std::uint32_t x) {
    std::uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}
// Four such matrices to shared memory: row r of the transposed matrix m to the 16 bytes that lane 8 m + r
// names.
__device__ __forceinline__ void store_transposed(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

#endif

}  // namespace dgemma::backend::cuda
