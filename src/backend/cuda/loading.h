// The way of weights from a mapped file to the card.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include <cuda_runtime_api.h>

#include "base/thread_pool.h"

namespace dgemma::backend::cuda {

class Context;

// Several threads read the file's pages into memory that the card copies from without a detour, while it
// still copies the piece before. One thread of pageable memory reaches a fraction of what the card takes.
class WeightCopier {
  public:
    // Where there is no memory of that kind, copies take the ordinary way.
    explicit WeightCopier(Context& context);
    ~WeightCopier();
    WeightCopier(const WeightCopier&) = delete;
    WeightCopier& operator=(const WeightCopier&) = delete;

    // In the order of the context's stream. `from` has been read when this returns. What goes wrong is kept
    // by the context.
    void copy(void* to, const void* from, std::size_t bytes);

  private:
    struct Stage {
        std::byte* memory = nullptr;  // null: there was none
        cudaEvent_t copied = nullptr;
    };

    Context& context_;
    ThreadPool pool_;
    std::array<Stage, 3> stages_;
    std::size_t turn_ = 0;
};

}  // namespace dgemma::backend::cuda
