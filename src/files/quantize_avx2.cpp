// Writing weights with AVX2; the build compiles this file for that.
#if defined(__x86_64__)
#define DGEMMA_LANES 8
#define DGEMMA_TABLE quantize_avx2
#define DGEMMA_ISA "avx2"
#include "files/quantize_kernels.inl"
#endif
