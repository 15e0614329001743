// Writing weights with AVX-512; the build compiles this file for that.
#if defined(__x86_64__)
#define DGEMMA_LANES 16
#define DGEMMA_TABLE quantize_avx512
#define DGEMMA_ISA "avx512"
#include "files/quantize_kernels.inl"
#endif
