#include "backend/cuda/recordings.h"

namespace dgemma::backend::cuda {

void Recordings::run(const std::vector<std::uint64_t>& key, const std::function<void()>& operations) {
    Recording& recording = recordings_[key];
    if (recording.graph != nullptr && recording.generation == context_.generation()) {
        context_.check(cudaGraphLaunch(recording.graph.get(), context_.stream()), "repeating a pass");
        context_.nothing_early();
        return;
    }
    const bool ready = recording.generation == context_.generation();
    recording.graph.reset();
    if (!ready || !record(operations, recording)) {
        operations();
        recording.generation = context_.generation();
    }
    if (recordings_.size() > most_recordings) {
        context_.synchronize("a pass");
        recordings_.clear();
    }
}

bool Recordings::record(const std::function<void()>& operations, Recording& recording) {
    cudaStream_t stream = context_.stream();
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    context_.nothing_early();
    operations();
    context_.nothing_early();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    const bool captured = cudaStreamEndCapture(stream, &graph) == cudaSuccess && !context_.failed() &&
                          cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (!captured) {
        cudaGetLastError();
        (void)context_.take_failure();
        return false;
    }
    recording.graph.reset(executable);
    recording.generation = context_.generation();
    context_.check(cudaGraphLaunch(executable, stream), "running a recorded pass");
    return true;
}

}  // namespace dgemma::backend::cuda
