// Random weights made on the device, and the profile.
#include <fmt/core.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_backend.h"

namespace dgemma::backend {

Result<std::unique_ptr<Weight>> make_random_cuda_weight(Backend& backend, const Shape& shape, Dtype type,
                                                        float scale, float mean, std::uint64_t seed) {
    cuda::Context& context = static_cast<cuda::CudaBackend&>(backend).context();
    DGEMMA_TRY(auto weight, cuda::DeviceWeight::make(context, shape, type));
    cuda::fill_random(context, weight->data(), weight->matrix().type, elements_of(shape), scale, mean, seed);
    context.nothing_early();  // a product may read its weights before the kernel before it is over
    DGEMMA_CHECK(context.take_failure());
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> make_random_cuda_branch(Backend& backend, const Shape& shape,
                                                        Encoding encoding, float deviation,
                                                        std::uint64_t seed) {
    auto& own = static_cast<cuda::CudaBackend&>(backend);
    if (own.multiplies_e4m3() && cuda::DeviceWeight::keeps_e4m3(shape, encoding)) {
        DGEMMA_TRY(auto codes, cuda::DeviceWeight::make_random_e4m3(own.context(), shape, deviation, seed));
        return std::unique_ptr<Weight>(std::move(codes));
    }
    if (!own.packs() || !cuda::DeviceWeight::packable(shape, encoding)) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("a weight of shape {} stored as {} is not computed with as it is on this GPU",
                        to_string(shape), name_of(encoding))};
    }
    DGEMMA_TRY(auto weight, cuda::DeviceWeight::make_random(own.context(), shape, cuda::packing_of(encoding),
                                                            deviation, seed));
    return std::unique_ptr<Weight>(std::move(weight));
}

void begin_cuda_profile(Backend& backend) {
    static_cast<cuda::CudaBackend&>(backend).context().begin_profile();
}

std::vector<CudaStageTime> end_cuda_profile(Backend& backend) {
    return static_cast<cuda::CudaBackend&>(backend).context().end_profile();
}

double cuda_milliseconds(Backend& backend, int repeat, void (*f)(void*), void* argument) {
    cuda::Context& context = static_cast<cuda::CudaBackend&>(backend).context();
    context.enter();
    cudaEvent_t begin = nullptr, end = nullptr;
    context.check(cudaEventCreate(&begin), "measuring");
    context.check(cudaEventCreate(&end), "measuring");
    context.check(cudaEventRecord(begin, context.stream()), "measuring");
    for (int i = 0; i < repeat; ++i) f(argument);
    context.check(cudaEventRecord(end, context.stream()), "measuring");
    context.synchronize("measuring");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return milliseconds;
}

}  // namespace dgemma::backend
