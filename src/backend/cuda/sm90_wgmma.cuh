// The matrix instruction of a Hopper warpgroup, wgmma m64nNk16: d [64, N] (+)= a [64, 16] b [16, N] with bf16
// operands in shared memory behind descriptors and f32 sums in registers. `keep` false: d is overwritten. B
// comes as rows of n ([N, 16], k contiguous), or as rows of k ([16, N], n contiguous) where ByRows.
#pragma once

#include <cstdint>

#include "backend/cuda/sm90_wgmma_sums.cuh"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int N, bool ByRows>
struct WarpgroupMultiply;

// N, the sums of a thread, and the numbers of the operands that follow them.
#define DGEMMA_WGMMA(N, SUMS, A, B, KEEP, BY_ROWS)                                                     \
    template <bool ByRows>                                                                             \
    struct WarpgroupMultiply<N, ByRows> {                                                              \
        static __device__ __forceinline__ void run(float (&d)[SUMS], std::uint64_t a, std::uint64_t b, \
                                                   bool keep) {                                        \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                              \
                         ", 0;\n"                                                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #N                                        \
                         "k16.f32.bf16.bf16 {" DGEMMA_SUM_NAMES_##SUMS                                 \
                         "}, %" #A ", %" #B ", keep, 1, 1, 0, %" #BY_ROWS ";\n}\n"                     \
                         : DGEMMA_SUMS_##SUMS                                                          \
                         : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(ByRows ? 1 : 0));          \
        }                                                                                              \
    };
DGEMMA_WGMMA(16, 8, 8, 9, 10, 11)
DGEMMA_WGMMA(32, 16, 16, 17, 18, 19)
DGEMMA_WGMMA(48, 24, 24, 25, 26, 27)
DGEMMA_WGMMA(64, 32, 32, 33, 34, 35)
DGEMMA_WGMMA(80, 40, 40, 41, 42, 43)
DGEMMA_WGMMA(96, 48, 48, 49, 50, 51)
DGEMMA_WGMMA(112, 56, 56, 57, 58, 59)
DGEMMA_WGMMA(128, 64, 64, 65, 66, 67)
DGEMMA_WGMMA(144, 72, 72, 73, 74, 75)
DGEMMA_WGMMA(160, 80, 80, 81, 82, 83)
DGEMMA_WGMMA(192, 96, 96, 97, 98, 99)
DGEMMA_WGMMA(256, 128, 128, 129, 130, 131)
#undef DGEMMA_WGMMA

// The same with a in registers: the four words of a thread for rows lane / 4 and + 8, k lane % 4 * 2 and + 8.
// b by rows of k.
__device__ __forceinline__ void warpgroup_multiply_registers(float (&d)[128], const std::uint32_t (&a)[4],
                                                             std::uint64_t b) {
    asm volatile(
        "{\n.reg .pred keep;\nsetp.eq.u32 keep, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" DGEMMA_SUM_NAMES_128
        "}, {%128, %129, %130, %131}, %132, keep, 1, 1, 1;\n}\n"
        : DGEMMA_SUMS_128
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same with a in registers: a fragment is rows lane / 4 (+ 8) of the warp's 16, k lane % 4 * 2 (+ 1) and,
// in its second half, k + 8: a[0] and a[2] of the first row, a[1] and a[3] of the second.
template <int N>
struct WarpgroupMultiplyRegisters;

#define DGEMMA_WGMMA(N, SUMS, A0, A1, A2, A3, B, KEEP)                                                       \
    template <>                                                                                              \
    struct WarpgroupMultiplyRegisters<N> {                                                                   \
        static __device__ __forceinline__ void run(float (&d)[SUMS], const std::uint32_t* a,                 \
                                                   std::uint64_t b, bool keep) {                             \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                                    \
                         ", 0;\n"                                                                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N                                              \
                         "k16.f32.bf16.bf16 {" DGEMMA_SUM_NAMES_##SUMS                                       \
                         "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", keep, 1, 1, 0;\n}\n"         \
                         : DGEMMA_SUMS_##SUMS                                                                \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep))); \
        }                                                                                                    \
    };
DGEMMA_WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
DGEMMA_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
DGEMMA_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
#undef DGEMMA_WGMMA

#endif

}  // namespace dgemma::backend::cuda
