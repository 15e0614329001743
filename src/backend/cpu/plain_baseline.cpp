// Plain kernels for any machine.
#define DGEMMA_LANES 4
#define DGEMMA_PANEL 4
#define DGEMMA_VECTORS 2
#define DGEMMA_TABLE plain_baseline
#define DGEMMA_ISA "baseline"
#include "backend/cpu/plain_kernels.inl"
