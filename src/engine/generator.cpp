#include "engine/generator.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "engine/loaded_model.h"
#include "engine/reply.h"

namespace dgemma::engine {

Generator::Generator(std::unique_ptr<LoadedModel> loaded) : loaded_(std::move(loaded)) {}
Generator::~Generator() = default;

const model::Config& Generator::config() const { return loaded_->config; }
const model::GenerationConfig& Generator::generation_config() const { return loaded_->generation; }
int Generator::context_limit() const { return loaded_->context; }

Result<std::unique_ptr<Generator>> Generator::load(const files::Checkpoint& checkpoint,
                                                   const LoadOptions& options) {
    DGEMMA_TRY(std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, options));
    return std::unique_ptr<Generator>(new Generator(std::move(loaded)));
}

diffusion::Options Generator::default_options() const {
    const model::GenerationConfig& g = loaded_->generation;
    diffusion::Options out;
    out.sampler = g.sampler == model::SamplerKind::confidence_threshold
                      ? diffusion::Sampler::confidence_threshold
                      : diffusion::Sampler::entropy_bound;
    out.max_steps = g.max_denoising_steps;
    out.entropy_bound = g.entropy_bound;
    out.threshold = g.threshold;
    out.t_min = g.t_min;
    out.t_max = g.t_max;
    out.stability_threshold = g.stability_threshold;
    out.confidence_threshold = g.confidence_threshold;
    return out;
}

Result<EndEvent> Generator::generate(const Request& request, Sink& sink) {
    const int vocab = loaded_->config.text.vocab_size;
    if (request.prompt.empty()) {
        return Error{ErrorKind::usage, "the prompt is empty: give at least one token"};
    }
    for (const std::int32_t id : request.prompt) {
        if (id < 0 || id >= vocab) {
            return Error{ErrorKind::usage, fmt::format("token id {} is outside the model's vocabulary of {}: "
                                                       "the tokenizer belongs to another model",
                                                       id, vocab)};
        }
    }
    if (request.max_tokens < 0 || request.canvas_length < 0) {
        return Error{ErrorKind::usage,
                     "max_tokens and canvas_length cannot be negative; 0 means the default"};
    }
    const int canvas = request.canvas_length > 0 ? request.canvas_length : loaded_->config.canvas_length;
    DGEMMA_TRY(const Budget budget, plan_budget(static_cast<int>(request.prompt.size()), request.max_tokens,
                                                canvas, request.shrink_canvas, loaded_->context));
    DGEMMA_CHECK(diffusion::check(request.diffusion));

    std::vector<std::int32_t> stop_ids = request.stop_ids;
    if (stop_ids.empty()) {
        const std::vector<int>& own =
            loaded_->generation.eos_ids.empty() ? loaded_->config.eos_ids : loaded_->generation.eos_ids;
        stop_ids.assign(own.begin(), own.end());
    }
    Reply reply(*loaded_->model, *loaded_->cache, request, std::move(stop_ids), budget, sink);
    return reply.run();
}

}  // namespace dgemma::engine
