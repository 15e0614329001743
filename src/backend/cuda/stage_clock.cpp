#include "backend/cuda/stage_clock.h"

namespace dgemma::backend::cuda {

StageClock::~StageClock() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void StageClock::mark(int stage) {
    if (!on_ || context_.failed()) return;
    if (marks_.size() == events_.size()) {
        cudaEvent_t event = nullptr;
        context_.check(cudaEventCreate(&event), "measuring");
        if (event == nullptr) return;
        events_.push_back(event);
    }
    context_.nothing_early();
    context_.check(cudaEventRecord(events_[marks_.size()], context_.stream()), "measuring");
    marks_.push_back(stage);
}

std::array<double, kStages> StageClock::take() {
    std::array<double, kStages> times{};
    if (marks_.empty()) return times;
    context_.enter();
    context_.synchronize("measuring");
    for (std::size_t i = 0; i + 1 < marks_.size(); ++i) {
        float milliseconds = 0;
        if (marks_[i] == none) continue;
        context_.check(cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1]), "measuring");
        times[static_cast<std::size_t>(marks_[i])] += milliseconds;
    }
    marks_.clear();
    return times;
}

}  // namespace dgemma::backend::cuda
