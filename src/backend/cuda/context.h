// A device, its stream, the memory that operations borrow, and what went wrong there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/loading.h"
#include "base/result.h"

namespace dgemma::backend::cuda {

// Working memory of operations, by what it holds. Each piece grows to the largest use so far and belongs to
// one operation at a time.
enum class Scratch : std::uint8_t {
    gate,
    up,
    activation,
    partials,       // f32 sums over parts of K
    probabilities,  // of the soft embedding
    router_input,
    router_logits,
    sorted_rows,    // expert inputs, rows sorted by expert
    expert_hidden,  // what lies between an expert's matrices, in the same order
    expert_rows,    // expert outputs, in the same order
    e4m3_rows,      // the input of a projection in E4M3, and its scales
    e4m3_dense,     // of the dense MLP
    e4m3_experts,   // of the experts
    e4m3_hidden,    // what lies between an expert's matrices, rows sorted by expert, and scales
    e4m3_dense_hidden,
    places,          // int32: who stands where in that order
    dense_ready,     // int32: how far the hidden layer of a packed MLP is, and the items taken
    attention_sums,  // f32 partial outputs of attention
    attention_ends,  // their maxima and sums
    statistics,      // partial row statistics of the head
    last
};

class Context {
  public:
    static Result<std::unique_ptr<Context>> open(const CudaOptions& options);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    [[nodiscard]] cudaStream_t stream() const { return stream_; }
    [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
    [[nodiscard]] int shared_limit() const { return shared_limit_; }  // bytes a block may opt in to
    [[nodiscard]] bool hopper() const { return hopper_; }  // compiled for, running on and allowed to use it

    // Whether the next kernel may settle on the card before the one before it is over: on Hopper, unless
    // something else than a kernel comes before it.
    bool take_turn_early() {
        const bool early = early_;
        early_ = overlaps_;
        ++kernels_;
        return early;
    }
    // How many kernels took their turn so far.
    [[nodiscard]] std::uint64_t kernels() const { return kernels_; }
    void nothing_early() { early_ = false; }

    // Makes the device current for the calling thread.
    void enter() const;

    // Operations return nothing, so the first thing that went wrong is kept until somebody takes it; from
    // then on operations do nothing.
    void check(cudaError_t error, const char* doing);
    void fail(ErrorKind kind, std::string message);
    [[nodiscard]] bool failed() const { return failure_.has_value(); }
    Status take_failure();

    // Changes whenever working memory moves: what was recorded before names memory that is gone.
    [[nodiscard]] std::uint64_t generation() const { return generation_; }
    void memory_moved() { ++generation_; }

    std::uint64_t next_number() { return ++numbers_; }

    // Null after a failure.
    void* scratch(Scratch which, std::size_t bytes);
    template <class T>
    T* scratch(Scratch which, std::int64_t count) {
        return static_cast<T*>(scratch(which, static_cast<std::size_t>(count) * sizeof(T)));
    }

    // Stream-ordered memory. Errors: io, also where the limit of the options would be passed.
    Result<void*> allocate(std::size_t bytes);
    void release(void* memory, std::size_t bytes);
    void to_device(void* to, const void* from, std::size_t bytes, const char* doing);
    void to_host(void* to, const void* from, std::size_t bytes, const char* doing);  // waits
    // A weight's bytes, most of which are in files yet; and that there will be no more of them for now.
    void load(void* to, const void* from, std::size_t bytes);
    void end_loading() { copier_.reset(); }
    void synchronize(const char* doing);

    // --- measurements
    class Stage;
    [[nodiscard]] bool profiling() const { return profiling_; }
    void begin_profile();
    std::vector<CudaStageTime> end_profile();

  private:
    Context() = default;

    int device_ = 0;
    cudaStream_t stream_ = nullptr;
    std::uint64_t generation_ = 0, numbers_ = 0;
    std::uint64_t used_bytes_ = 0, most_bytes_ = 0;
    int multiprocessors_ = 0, shared_limit_ = 0;
    bool hopper_ = false;
    bool overlaps_ = false, early_ = false;
    std::uint64_t kernels_ = 0;
    std::optional<Error> failure_;
    std::unique_ptr<WeightCopier> copier_;  // while weights are loaded
    struct Piece {
        void* memory = nullptr;
        std::size_t bytes = 0;
    };
    std::array<Piece, static_cast<std::size_t>(Scratch::last)> scratch_{};

    struct Mark {
        const char* stage;
        cudaEvent_t begin, end;
    };
    bool profiling_ = false;
    std::vector<Mark> marks_;
};

// The span of one operation, for the profile. Operations may contain others; only the outermost counts.
class Context::Stage {
  public:
    Stage(Context& context, const char* name);
    ~Stage();
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

  private:
    Context& context_;
    bool outermost_ = false;
};

// The one place that asks the runtime for the first time, and so learns whether there is a driver. Errors:
// unsupported.
Result<int> count_devices();

// "not enough device memory for N MiB more"; limit: of the options, 0 where there is none.
Error out_of_memory(std::size_t bytes, std::uint64_t limit = 0);

}  // namespace dgemma::backend::cuda
