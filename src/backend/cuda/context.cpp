#include "backend/cuda/context.h"

#include <algorithm>
#include <utility>

#include <cuda_profiler_api.h>
#include <fmt/core.h>

#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

Result<int> count_devices() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
        (error == cudaSuccess && count == 0)) {
        int driver = 0;
        cudaDriverGetVersion(&driver);
        cudaGetLastError();
        return Error{
            ErrorKind::unsupported,
            driver == 0 ? "no NVIDIA driver is loaded on this machine: install one, or use the CPU"
            : error == cudaErrorInsufficientDriver
                ? fmt::format("the NVIDIA driver is too old for this build (it offers CUDA {}.{}): update "
                              "it, or use the CPU",
                              driver / 1000, driver % 1000 / 10)
                : "there is an NVIDIA driver but no GPU that it lets us use: check "
                  "CUDA_VISIBLE_DEVICES, or use the CPU"};
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        return Error{ErrorKind::unsupported,
                     fmt::format("CUDA does not start on this machine: {}", cudaGetErrorString(error))};
    }
    return count;
}

Error out_of_memory(std::size_t bytes, std::uint64_t limit) {
    if (limit > 0) {
        return {
            ErrorKind::io,
            fmt::format("{} MiB more would pass the limit of {} MiB of GPU memory (--vram): use a shorter "
                        "context, fewer requests at once or a smaller weight format",
                        (bytes + (1u << 20) - 1) >> 20, limit >> 20)};
    }
    return {ErrorKind::io,
            fmt::format("not enough free memory on the GPU for {} MiB more: use a shorter context, fewer "
                        "requests at once or a smaller weight format",
                        (bytes + (1u << 20) - 1) >> 20)};
}

Result<std::unique_ptr<Context>> Context::open(const CudaOptions& options) {
    DGEMMA_TRY(const int count, count_devices());
    if (options.device < 0 || options.device >= count) {
        return Error{ErrorKind::usage, fmt::format("there is no CUDA device {}: this machine has 0 to {}",
                                                   options.device, count - 1)};
    }
    std::unique_ptr<Context> context(new Context);
    context->device_ = options.device;
    context->most_bytes_ = options.most_bytes;
    const auto attribute = [&](cudaDeviceAttr what) {
        int value = 0;
        context->check(cudaDeviceGetAttribute(&value, what, options.device),
                       "reading the device's properties");
        return value;
    };
    const int major = attribute(cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor);
    context->multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
    context->shared_limit_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (!context->failed() && major < 8) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("CUDA device {} has compute capability {}.{}: 8.0 (Ampere) is the oldest we run on",
                        options.device, major, minor)};
    }
    context->enter();
    context->check(cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking), "creating a stream");
    // Freed pages of a cache are kept for the next request.
    cudaMemPool_t pool = nullptr;
    context->check(cudaDeviceGetDefaultMemPool(&pool, options.device), "opening the memory pool");
    std::uint64_t threshold = UINT64_MAX;
    if (!context->failed())
        context->check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                       "configuring the memory pool");
    context->overlaps_ = major >= 9;
    context->hopper_ = options.hopper_kernels && major == 9 && minor == 0 && hopper_kernels_compiled() &&
                       load_tensor_map_encoder();
    DGEMMA_CHECK(context->take_failure());
    return context;
}

Context::~Context() {
    enter();
    copier_.reset();
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (const Piece& piece : scratch_) {
        if (piece.memory != nullptr) cudaFree(piece.memory);
    }
    for (const Mark& mark : marks_) {
        cudaEventDestroy(mark.begin);
        cudaEventDestroy(mark.end);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaGetLastError();
}

void Context::enter() const { cudaSetDevice(device_); }

void Context::check(cudaError_t error, const char* doing) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) {
        fail(ErrorKind::io,
             fmt::format("the GPU ran out of memory while {}: use a shorter context, fewer requests "
                         "at once or a smaller weight format",
                         doing));
    } else {
        fail(ErrorKind::io, fmt::format("the GPU failed while {}: {} ({})", doing, cudaGetErrorString(error),
                                        cudaGetErrorName(error)));
    }
}

void Context::fail(ErrorKind kind, std::string message) {
    if (!failure_) failure_ = Error{kind, std::move(message)};
}

Status Context::take_failure() {
    if (!failure_) return {};
    Error error = std::move(*failure_);
    failure_.reset();
    return error;
}

void* Context::scratch(Scratch which, std::size_t bytes) {
    if (failed()) return nullptr;
    Piece& piece = scratch_[static_cast<std::size_t>(which)];
    if (bytes > piece.bytes) {
        if (piece.memory != nullptr) {
            synchronize("growing working memory");
            cudaFree(piece.memory);
            used_bytes_ -= piece.bytes;
            piece = {};
        }
        if (most_bytes_ > 0 && used_bytes_ + bytes > most_bytes_) {
            failure_ = out_of_memory(bytes, most_bytes_);
            return nullptr;
        }
        void* memory = nullptr;
        if (cudaMalloc(&memory, bytes) != cudaSuccess) {
            cudaGetLastError();
            failure_ = out_of_memory(bytes);
            return nullptr;
        }
        piece = {memory, bytes};
        used_bytes_ += bytes;
        memory_moved();
    }
    return piece.memory;
}

Result<void*> Context::allocate(std::size_t bytes) {
    enter();
    if (most_bytes_ > 0 && used_bytes_ + bytes > most_bytes_) return out_of_memory(bytes, most_bytes_);
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_);
    early_ = false;
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return out_of_memory(bytes);
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        return Error{ErrorKind::io, fmt::format("the GPU failed before memory could be taken: {}",
                                                cudaGetErrorString(error))};
    }
    used_bytes_ += bytes;
    return memory;
}

void Context::release(void* memory, std::size_t bytes) {
    enter();
    used_bytes_ -= bytes;
    early_ = false;
    cudaFreeAsync(memory, stream_);
}

void Context::to_device(void* to, const void* from, std::size_t bytes, const char* doing) {
    early_ = false;
    if (bytes != 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), doing);
}

void Context::load(void* to, const void* from, std::size_t bytes) {
    early_ = false;
    if (copier_ == nullptr) copier_ = std::make_unique<WeightCopier>(*this);
    copier_->copy(to, from, bytes);
}

void Context::to_host(void* to, const void* from, std::size_t bytes, const char* doing) {
    early_ = false;
    if (bytes != 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), doing);
    synchronize(doing);
}

void Context::synchronize(const char* doing) { check(cudaStreamSynchronize(stream_), doing); }

void Context::begin_profile() {
    for (const Mark& mark : marks_) {
        cudaEventDestroy(mark.begin);
        cudaEventDestroy(mark.end);
    }
    marks_.clear();
    profiling_ = true;
    cudaProfilerStart();  // a profiler that waits for it looks at this part only
}

std::vector<CudaStageTime> Context::end_profile() {
    profiling_ = false;
    synchronize("measuring");
    cudaProfilerStop();
    std::vector<CudaStageTime> times;
    for (const Mark& mark : marks_) {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, mark.begin, mark.end);
        auto at = std::find_if(times.begin(), times.end(),
                               [&](const CudaStageTime& t) { return t.stage == mark.stage; });
        if (at == times.end()) at = times.insert(times.end(), CudaStageTime{mark.stage, 0, 0});
        at->milliseconds += milliseconds;
        ++at->calls;
    }
    return times;
}

namespace {
thread_local bool inside_stage = false;
}

Context::Stage::Stage(Context& context, const char* name) : context_(context) {
    if (name == nullptr || !context.profiling_ || inside_stage) return;
    inside_stage = outermost_ = true;
    Mark mark{name, nullptr, nullptr};
    context.check(cudaEventCreate(&mark.begin), "measuring");
    context.check(cudaEventCreate(&mark.end), "measuring");
    context.early_ = false;
    context.check(cudaEventRecord(mark.begin, context.stream_), "measuring");
    context.marks_.push_back(mark);
}

Context::Stage::~Stage() {
    if (!outermost_) return;
    inside_stage = false;
    context_.early_ = false;
    context_.check(cudaEventRecord(context_.marks_.back().end, context_.stream_), "measuring");
}

}  // namespace dgemma::backend::cuda
