// Plain kernels for the vectors every 64-bit Arm has.
#if defined(__aarch64__)
#define DGEMMA_LANES 4
#define DGEMMA_PANEL 6
#define DGEMMA_VECTORS 4
#define DGEMMA_TABLE plain_neon
#define DGEMMA_ISA "neon"
#include "backend/cpu/plain_kernels.inl"
#endif
