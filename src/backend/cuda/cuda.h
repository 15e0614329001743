// The CUDA backend: bf16 or true f32 on one NVIDIA GPU, compute capability 8.0 and up, with kernels of its
// own for Hopper (9.0). This header needs no CUDA header: a build without the toolkit links stub.cpp instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"

namespace dgemma::backend {

struct CudaDevice {
    int index = 0;
    std::string name;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    std::size_t memory_bytes = 0, free_bytes = 0;
};

// Every device that the backend could run on. Errors: unsupported, with a sentence that says why there is
// none (built without CUDA, no driver, no device).
Result<std::vector<CudaDevice>> cuda_devices();

// Can make_cuda_backend work here at all? If not, `why` (may be null) says why.
bool cuda_available(std::string* why = nullptr);

struct CudaOptions {
    int device = 0;
    std::uint64_t most_bytes = 0;  // of device memory for weights, caches and work; 0: what there is
    bool hopper_kernels = true;  // false: the kernels of compute capability 8.0 also on a newer card (tests)
    // Weights of attention's projections, the dense MLP and the experts that are stored in E4M3 (profile fp8)
    // are multiplied as such, and the activations that meet them become E4M3 with a scale per row, those of
    // hidden layers with one for every 128 columns (base/e4m3_rows.h). Takes effect on Hopper, where
    // activations are bf16; elsewhere such weights become bf16 and activations stay. An approximation: the
    // engine asks for it where the precision is mixed and experts are in E4M3, never for bf16 or f32, which
    // --exact stands for.
    bool e4m3_activations = false;
};

// f32: activations and sums in f32, no TF32. Everything else: activations are bf16, rounded where
// contract/model.md 3 rounds, and sums f32. Errors: unsupported (as cuda_devices), usage (no such device),
// io (memory).
Result<std::unique_ptr<Backend>> make_cuda_backend(Precision precision, const CudaOptions& options = {});

// --- for measurements; the backend must be one of make_cuda_backend.

// A weight of pseudo-random numbers about N(mean, scale), made on the device: no file is read.
Result<std::unique_ptr<Weight>> make_random_cuda_weight(Backend& backend, const Shape& shape, Dtype type,
                                                        float scale, float mean, std::uint64_t seed);
// The same of a weight of the dense MLP or the experts, [out, in] or [experts, out, in], in an encoding other
// than plain, about N(0, deviation) and as prepare_branch (or, E4M3, prepare_projection) would keep it.
// Errors: unsupported, where that is not as it is stored.
Result<std::unique_ptr<Weight>> make_random_cuda_branch(Backend& backend, const Shape& shape,
                                                        Encoding encoding, float deviation,
                                                        std::uint64_t seed);

// Device time by operation. Recording costs two events an operation and is off until begin_cuda_profile.
struct CudaStageTime {
    std::string stage;
    double milliseconds = 0;
    int calls = 0;
};
void begin_cuda_profile(Backend& backend);
// Ends it; in the order in which the operations first ran.
std::vector<CudaStageTime> end_cuda_profile(Backend& backend);

// Milliseconds of device time that `repeat` calls of f took, by events around all of them.
double cuda_milliseconds(Backend& backend, int repeat, void (*f)(void*), void* argument);

}  // namespace dgemma::backend
