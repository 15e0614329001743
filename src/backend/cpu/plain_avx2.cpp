// Plain kernels for AVX2 with FMA; the build compiles this file for that.
#if defined(__x86_64__)
#define DGEMMA_LANES 8
#define DGEMMA_PANEL 6
#define DGEMMA_VECTORS 2
#define DGEMMA_TABLE plain_avx2
#define DGEMMA_ISA "avx2"
#include "backend/cpu/plain_kernels.inl"
#endif
