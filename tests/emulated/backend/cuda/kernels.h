// What the emulated kernels need of kernels.h of src/backend/cuda, which is made of CUDA's headers.
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/cuda/e4m3_operands.h"
#include "backend/cuda/tensor_map.h"

namespace dgemma::backend::cuda {

constexpr std::size_t most_row_blocks = 1;

struct Context {
    int blocks = 1;
    [[nodiscard]] static bool failed() { return false; }
    [[nodiscard]] int multiprocessors() const { return blocks; }
    [[nodiscard]] static std::uint64_t kernels() { return 1; }
    void check(int, const char*) {}
};
inline CUtensorMap tensor_map(Context&, const void* data, std::int64_t rows, std::int64_t cols,
                              int box_rows) {
    return {static_cast<const std::uint8_t*>(data), rows, cols, box_rows};
}
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 0;
template <class Kernel>
int cudaFuncSetAttribute(Kernel, int, int) {
    return 0;
}

// Of bf16.
struct DeviceMatrix {
    const void* data = nullptr;
    std::int64_t groups = 1, outs = 0, ins = 0;
};
struct DenseBeside {
    const void* x = nullptr;
    std::int64_t rows = 0;
    DeviceMatrix gate, up, down;
    void *act = nullptr, *y = nullptr;
};

struct Places {
    std::int64_t pairs = 0;
    std::int32_t *offsets = nullptr, *row_at = nullptr, *ready = nullptr, *dense_ready = nullptr;
    std::uint64_t router = 0;
};
bool sm90_experts_fit(std::int64_t experts, std::int64_t hidden, std::int64_t width);
void sm90_experts(Context&, const void* x, const DeviceMatrix& gate_up, const DeviceMatrix& down,
                  const Places& places, void* act, void* y, const DenseBeside& dense);
void sm90_e4m3_experts(Context&, const E4m3Rows& x, const E4m3Matrix& gate_up, const E4m3Matrix& down,
                       const Places& places, const E4m3Target& hidden, void* y, const E4m3Dense& dense);
void sm90_e4m3_multiply(Context&, const E4m3Rows& x, std::int64_t rows, const E4m3Matrix* weights,
                        void* const* outs, int count);

}  // namespace dgemma::backend::cuda
