// Stands in for the CUDA backend where there was no CUDA compiler at build time.
#include "backend/cuda/cuda.h"

namespace dgemma::backend {

namespace {
const char* const absent =
    "this build has no CUDA backend: configure with -DDGEMMA_CUDA=ON where nvcc is installed, or use the CPU";
}

Result<std::vector<CudaDevice>> cuda_devices() { return Error{ErrorKind::unsupported, absent}; }

bool cuda_available(std::string* why) {
    if (why != nullptr) *why = absent;
    return false;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(Precision, const CudaOptions&) {
    return Error{ErrorKind::unsupported, absent};
}

Result<std::unique_ptr<Weight>> make_random_cuda_weight(Backend&, const Shape&, Dtype, float, float,
                                                        std::uint64_t) {
    return Error{ErrorKind::unsupported, absent};
}

Result<std::unique_ptr<Weight>> make_random_cuda_branch(Backend&, const Shape&, Encoding, float,
                                                        std::uint64_t) {
    return Error{ErrorKind::unsupported, absent};
}

void begin_cuda_profile(Backend&) {}
std::vector<CudaStageTime> end_cuda_profile(Backend&) { return {}; }
double cuda_milliseconds(Backend&, int, void (*)(void*), void*) { return 0; }

}  // namespace dgemma::backend
