// Plain kernels for AVX-512; the build compiles this file for that.
#if defined(__x86_64__)
#define DGEMMA_LANES 16
#define DGEMMA_PANEL 12
#define DGEMMA_VECTORS 2
#define DGEMMA_TABLE plain_avx512
#define DGEMMA_ISA "avx512"
#include "backend/cpu/plain_kernels.inl"
#endif
