#include "backend/cuda/loading.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

namespace {

constexpr std::size_t kStageBytes = std::size_t{64} << 20;
constexpr std::size_t kSliceBytes = std::size_t{1} << 20;  // a thread's turn, and the least that is worth it
constexpr int kMostThreads = 16;

}  // namespace

WeightCopier::WeightCopier(Context& context)
    : context_(context), pool_(std::min(kMostThreads, ThreadPool::default_threads())) {
    context.enter();
    for (Stage& stage : stages_) {
        void* memory = nullptr;
        if (cudaMallocHost(&memory, kStageBytes) != cudaSuccess) {
            cudaGetLastError();
            break;
        }
        stage.memory = static_cast<std::byte*>(memory);
        context.check(cudaEventCreateWithFlags(&stage.copied, cudaEventDisableTiming), "loading weights");
    }
}

WeightCopier::~WeightCopier() {
    context_.enter();
    context_.synchronize("loading weights");
    for (const Stage& stage : stages_) {
        if (stage.copied != nullptr) cudaEventDestroy(stage.copied);
        if (stage.memory != nullptr) cudaFreeHost(stage.memory);
    }
}

void WeightCopier::copy(void* to, const void* from, std::size_t bytes) {
    if (bytes < kSliceBytes || stages_.back().memory == nullptr) {
        context_.to_device(to, from, bytes, "loading weights");
        return;
    }
    for (std::size_t done = 0; done < bytes && !context_.failed();) {
        const std::size_t piece = std::min(kStageBytes, bytes - done);
        const std::byte* source = static_cast<const std::byte*>(from) + done;
        Stage& stage = stages_[turn_++ % stages_.size()];
        context_.check(cudaEventSynchronize(stage.copied), "loading weights");
        const auto slices = static_cast<std::int64_t>((piece + kSliceBytes - 1) / kSliceBytes);
        pool_.parallel_for(slices, 1, [&](std::int64_t begin, std::int64_t end) {
            const std::size_t first = static_cast<std::size_t>(begin) * kSliceBytes;
            const std::size_t last = std::min(piece, static_cast<std::size_t>(end) * kSliceBytes);
            std::memcpy(stage.memory + first, source + first, last - first);
        });
        context_.to_device(static_cast<std::byte*>(to) + done, stage.memory, piece, "loading weights");
        context_.check(cudaEventRecord(stage.copied, context_.stream()), "loading weights");
        done += piece;
    }
}

}  // namespace dgemma::backend::cuda
