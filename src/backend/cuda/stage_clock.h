// Device time of the stages of a pass, by events between them.
#pragma once

#include <array>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/context.h"

namespace dgemma::backend::cuda {

class StageClock {
  public:
    explicit StageClock(Context& context) : context_(context) {}
    ~StageClock();
    StageClock(const StageClock&) = delete;
    StageClock& operator=(const StageClock&) = delete;

    // Off at first. While it is on, passes cannot be recorded.
    void set(bool on) { on_ = on; }
    [[nodiscard]] bool on() const { return on_; }

    void begin(Stage stage) { mark(static_cast<int>(stage)); }
    void end_pass() { mark(none); }
    // Milliseconds of each stage since the last call; waits for them.
    std::array<double, kStages> take();

  private:
    static constexpr int none = -1;
    void mark(int stage);

    Context& context_;
    bool on_ = false;
    std::vector<cudaEvent_t> events_;  // used again and again; one for each of the marks
    std::vector<int> marks_;           // the stages that begin there
};

}  // namespace dgemma::backend::cuda
