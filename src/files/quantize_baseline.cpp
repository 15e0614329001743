// Writing weights on any machine.
#define DGEMMA_LANES 4
#define DGEMMA_TABLE quantize_baseline
#define DGEMMA_ISA "baseline"
#include "files/quantize_kernels.inl"
