// What CUDA devices there are, or why there are none.
#include <fmt/core.h>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda.h"

namespace dgemma::backend {

Result<std::vector<CudaDevice>> cuda_devices() {
    DGEMMA_TRY(const int count, cuda::count_devices());
    std::vector<CudaDevice> out;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp properties{};
        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) {
            cudaGetLastError();
            continue;
        }
        CudaDevice device;
        device.index = i;
        device.name = properties.name;
        device.major = properties.major, device.minor = properties.minor;
        device.multiprocessors = properties.multiProcessorCount;
        device.memory_bytes = properties.totalGlobalMem;
        std::size_t free = 0, total = 0;
        if (cudaSetDevice(i) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess)
            device.free_bytes = free;
        cudaGetLastError();
        out.push_back(std::move(device));
    }
    return out;
}

bool cuda_available(std::string* why) {
    const auto devices = cuda_devices();
    std::string reason;
    if (!devices) {
        reason = devices.error().message;
    } else {
        for (const CudaDevice& device : devices.value()) {
            if (device.major >= 8) return true;
        }
        reason = "no GPU here has compute capability 8.0 (Ampere) or newer: use the CPU";
    }
    if (why != nullptr) *why = reason;
    return false;
}

}  // namespace dgemma::backend
