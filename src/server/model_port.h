// What the server needs of an engine. Scheduler is one; tests script another.
#pragma once

#include <memory>

#include "base/result.h"
#include "diffusion/options.h"
#include "engine/scheduler.h"
#include "files/checkpoint.h"

namespace dgemma::server {

// Everything may be called from any thread. See engine/scheduler.h for what each does.
class ModelPort {
  public:
    virtual ~ModelPort() = default;

    virtual Result<engine::RequestId> submit(engine::Request request,
                                             std::shared_ptr<engine::RequestSink> sink) = 0;
    virtual void cancel(engine::RequestId id) = 0;
    [[nodiscard]] virtual int retry_after_seconds() const = 0;
    [[nodiscard]] virtual engine::SchedulerStats stats() const = 0;

    [[nodiscard]] virtual diffusion::Options default_options() const = 0;
    [[nodiscard]] virtual int context_limit() const = 0;
    [[nodiscard]] virtual int canvas_length() const = 0;
    [[nodiscard]] virtual int vocabulary() const = 0;
};

// A scheduler of a model, with the checkpoint that it reads from. Errors: those of Scheduler::start.
Result<std::unique_ptr<ModelPort>> open_port(std::unique_ptr<files::Checkpoint> checkpoint,
                                             const engine::LoadOptions& load,
                                             const engine::SchedulerOptions& options);

}  // namespace dgemma::server
