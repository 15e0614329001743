#include "server/model_port.h"

#include <utility>

#include "model/config.h"

namespace dgemma::server {

namespace {

class SchedulerPort : public ModelPort {
  public:
    SchedulerPort(std::unique_ptr<files::Checkpoint> checkpoint, std::unique_ptr<engine::Scheduler> scheduler)
        : checkpoint_(std::move(checkpoint)), scheduler_(std::move(scheduler)) {}

    Result<engine::RequestId> submit(engine::Request request,
                                     std::shared_ptr<engine::RequestSink> sink) override {
        return scheduler_->submit(std::move(request), std::move(sink));
    }
    void cancel(engine::RequestId id) override { scheduler_->cancel(id); }
    [[nodiscard]] int retry_after_seconds() const override { return scheduler_->retry_after_seconds(); }
    [[nodiscard]] engine::SchedulerStats stats() const override { return scheduler_->stats(); }
    [[nodiscard]] diffusion::Options default_options() const override {
        return scheduler_->default_options();
    }
    [[nodiscard]] int context_limit() const override { return scheduler_->context_limit(); }
    [[nodiscard]] int canvas_length() const override { return scheduler_->config().canvas_length; }
    [[nodiscard]] int vocabulary() const override { return scheduler_->config().text.vocab_size; }

  private:
    std::unique_ptr<files::Checkpoint> checkpoint_;  // outlives the scheduler
    std::unique_ptr<engine::Scheduler> scheduler_;
};

}  // namespace

Result<std::unique_ptr<ModelPort>> open_port(std::unique_ptr<files::Checkpoint> checkpoint,
                                             const engine::LoadOptions& load,
                                             const engine::SchedulerOptions& options) {
    DGEMMA_TRY(auto scheduler, engine::Scheduler::start(*checkpoint, load, options));
    return std::unique_ptr<ModelPort>(
        std::make_unique<SchedulerPort>(std::move(checkpoint), std::move(scheduler)));
}

}  // namespace dgemma::server
