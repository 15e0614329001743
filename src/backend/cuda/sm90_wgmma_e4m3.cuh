// The matrix instruction of a Hopper warpgroup for E4M3, wgmma m64nNk32: d [64, N] (+)= a [64, 32] b [32, N]
// with both operands in shared memory behind descriptors, k contiguous, and f32 sums in registers. `keep`
// false: d is overwritten. Rows of 128 codes lie as rows of 64 bf16 do, and 32 codes are as many bytes as 16
// bf16, so that descriptors and steps along k are those of sm90_wgmma.cuh, and so is where a thread finds its
// sums.
//
// The matrix unit adds such products with fewer bits than f32 has (about 14): a sum over many k is to be
// added up outside of it.
#pragma once

#include <cstdint>

#include "backend/cuda/sm90_wgmma_sums.cuh"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int N>
struct WarpgroupMultiplyE4m3;

// N, the sums of a thread, and the numbers of the operands that follow them.
#define DGEMMA_WGMMA(N, SUMS, A, B, KEEP)                                                              \
    template <>                                                                                        \
    struct WarpgroupMultiplyE4m3<N> {                                                                  \
        static __device__ __forceinline__ void run(float (&d)[SUMS], std::uint64_t a, std::uint64_t b, \
                                                   bool keep) {                                        \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                              \
                         ", 0;\n"                                                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #N                                        \
                         "k32.f32.e4m3.e4m3 {" DGEMMA_SUM_NAMES_##SUMS "}, %" #A ", %" #B              \
                                                                       ", keep, 1, 1;\n}\n"            \
                         : DGEMMA_SUMS_##SUMS                                                          \
                         : "l"(a), "l"(b), "r"(static_cast<int>(keep)));                               \
        }                                                                                              \
    };
DGEMMA_WGMMA(16, 8, 8, 9, 10)
DGEMMA_WGMMA(32, 16, 16, 17, 18)
DGEMMA_WGMMA(64, 32, 32, 33, 34)
DGEMMA_WGMMA(128, 64, 64, 65, 66)
DGEMMA_WGMMA(192, 96, 96, 97, 98)
#undef DGEMMA_WGMMA

#endif

}  // namespace dgemma::backend::cuda
