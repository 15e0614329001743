#include "engine/generator.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "backend/cpu/cpu.h"
#include "base/thread_pool.h"
#include "engine/reply.h"
#include "files/checkpoint.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace dgemma::engine {

struct Generator::Impl {
    model::Config config;
    model::GenerationConfig generation;
    int context = 0;
    std::unique_ptr<backend::Backend> backend;
    std::optional<model::Model> model;
    std::optional<model::KvCache> cache;
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;

const model::Config& Generator::config() const { return impl_->config; }
const model::GenerationConfig& Generator::generation_config() const { return impl_->generation; }
int Generator::context_limit() const { return impl_->context; }

Result<std::unique_ptr<Generator>> Generator::load(const files::Checkpoint& checkpoint,
                                                   const LoadOptions& options) {
    if (options.threads < 0 || options.context < 0 || options.prefill_chunk < 1) {
        return Error{ErrorKind::usage,
                     "threads and context cannot be negative, and a prefill chunk has at least one token"};
    }
    auto impl = std::make_unique<Impl>();
    const std::string where = (checkpoint.path() / "config.json").string();
    DGEMMA_TRY(const std::string config, checkpoint.config_text());
    DGEMMA_TRY(impl->config, model::parse_config(config, where));
    if (checkpoint.has_file("generation_config.json")) {
        DGEMMA_TRY(const std::string generation, checkpoint.read_text("generation_config.json"));
        DGEMMA_TRY(impl->generation,
                   model::parse_generation_config(generation,
                                                  (checkpoint.path() / "generation_config.json").string()));
    }
    impl->context = options.context > 0 ? options.context : impl->config.text.max_positions;
    const int threads = options.threads > 0 ? options.threads : ThreadPool::default_threads();
    impl->backend = options.backend == BackendKind::reference
                        ? backend::make_reference_backend(options.precision)
                        : backend::make_plain_backend(options.precision, threads);
    DGEMMA_TRY(model::Weights weights, model::load_weights(checkpoint, impl->config, *impl->backend));
    impl->model.emplace(impl->config, std::move(weights), *impl->backend);
    const Dtype kv = options.precision == backend::Precision::bf16 ? Dtype::bf16 : Dtype::f32;
    impl->cache.emplace(impl->config, *impl->backend, options.prefill_chunk, kv);
    return std::unique_ptr<Generator>(new Generator(std::move(impl)));
}

diffusion::Options Generator::default_options() const {
    const model::GenerationConfig& g = impl_->generation;
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
    const int vocab = impl_->config.text.vocab_size;
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
    const int canvas = request.canvas_length > 0 ? request.canvas_length : impl_->config.canvas_length;
    DGEMMA_TRY(const Budget budget, plan_budget(static_cast<int>(request.prompt.size()), request.max_tokens,
                                                canvas, request.shrink_canvas, impl_->context));
    DGEMMA_CHECK(diffusion::check(request.diffusion));

    std::vector<std::int32_t> stop_ids = request.stop_ids;
    if (stop_ids.empty()) {
        const std::vector<int>& own =
            impl_->generation.eos_ids.empty() ? impl_->config.eos_ids : impl_->generation.eos_ids;
        stop_ids.assign(own.begin(), own.end());
    }
    Reply reply(*impl_->model, *impl_->cache, request, std::move(stop_ids), budget, sink);
    return reply.run();
}

}  // namespace dgemma::engine
