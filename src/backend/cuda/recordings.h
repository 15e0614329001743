// Passes recorded as CUDA graphs, and repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

class Recordings {
  public:
    explicit Recordings(Context& context) : context_(context) {}

    // Runs `operations`, or repeats what they did when a pass of this key was recorded. The first pass of a
    // key runs as it comes, since working memory may still grow; the second is recorded.
    void run(const std::vector<std::uint64_t>& key, const std::function<void()>& operations);

  private:
    static constexpr std::size_t most_recordings = 64;
    struct DestroyGraph {
        void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
    };
    struct Recording {
        std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph> graph;
        std::uint64_t generation = ~std::uint64_t{0};  // of working memory when the key was last seen
    };
    // Records the operations and runs the record. False: nothing ran, because the device would not record
    // them.
    bool record(const std::function<void()>& operations, Recording& recording);

    Context& context_;
    std::map<std::vector<std::uint64_t>, Recording> recordings_;
};

}  // namespace dgemma::backend::cuda
