#include "backend/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

namespace {

// The driver's function, found at run time so that nothing links the driver.
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
Encode find_encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return reinterpret_cast<Encode>(function);
}
Encode encoder() {
    static const Encode function = find_encoder();
    return function;
}

}  // namespace

bool load_tensor_map_encoder() { return encoder() != nullptr; }

CUtensorMap tensor_map(Context& context, const void* data, std::int64_t rows, std::int64_t cols,
                       int box_rows) {
    CUtensorMap map{};
    if (context.failed()) return map;
    const cuuint64_t size[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
    const cuuint64_t stride[] = {static_cast<cuuint64_t>(cols) * 2};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t step[] = {1, 1};
    const CUresult result =
        encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        context.fail(ErrorKind::io,
                     "the GPU's copy engine refused the shape of a matrix: build with other kernels "
                     "or use the CPU");
    return map;
}

}  // namespace dgemma::backend::cuda
