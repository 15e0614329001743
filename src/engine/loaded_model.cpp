#include "engine/loaded_model.h"

#include <utility>

#include <fmt/format.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/thread_pool.h"
#include "model/weights.h"

namespace dgemma::engine {

namespace {

Result<std::unique_ptr<backend::Backend>> make_backend(const LoadOptions& options) {
    switch (options.backend) {
        case BackendKind::cuda:
            return backend::make_cuda_backend(options.precision, {.device = options.device});
        case BackendKind::reference:
            return backend::make_reference_backend(options.precision);
        case BackendKind::plain:
            break;
    }
    const int threads = options.threads > 0 ? options.threads : ThreadPool::default_threads();
    std::unique_ptr<backend::Backend> made =
        backend::make_plain_backend(options.precision, threads, options.cpu_isa);
    if (made == nullptr) {
        return Error{
            ErrorKind::usage,
            fmt::format("this machine cannot run kernels for {}: leave --cpu-isa out, or choose from {}",
                        options.cpu_isa, fmt::join(backend::available_isas(), ", "))};
    }
    return made;
}

}  // namespace

std::vector<std::string_view> cpu_isas() { return backend::available_isas(); }

Result<std::unique_ptr<LoadedModel>> load_model(const files::Checkpoint& checkpoint,
                                                const LoadOptions& options) {
    if (options.threads < 0 || options.context < 0 || options.prefill_chunk < 1) {
        return Error{ErrorKind::usage,
                     "threads and context cannot be negative, and a prefill chunk has at least one token"};
    }
    if (options.threads > 0 && !ThreadPool::can_make(options.threads)) {
        return Error{ErrorKind::io,
                     fmt::format("the system does not make {} threads: ask for fewer with --threads",
                                 options.threads)};
    }
    auto loaded = std::make_unique<LoadedModel>();
    DGEMMA_TRY(const std::string config, checkpoint.config_text());
    DGEMMA_TRY(loaded->config, model::parse_config(config, (checkpoint.path() / "config.json").string()));
    if (checkpoint.has_file("generation_config.json")) {
        DGEMMA_TRY(const std::string generation, checkpoint.read_text("generation_config.json"));
        DGEMMA_TRY(loaded->generation,
                   model::parse_generation_config(generation,
                                                  (checkpoint.path() / "generation_config.json").string()));
    }
    for (const int id : loaded->generation.eos_ids) {
        if (id < 0 || id >= loaded->config.text.vocab_size) {
            return Error{
                ErrorKind::invalid,
                fmt::format("generation_config.json names the stop id {}, and the vocabulary has {} tokens: "
                            "the file belongs to another model",
                            id, loaded->config.text.vocab_size)};
        }
    }
    loaded->context = options.context > 0 ? options.context : loaded->config.text.max_positions;
    DGEMMA_TRY(loaded->backend, make_backend(options));
    DGEMMA_TRY(model::Weights weights, model::load_weights(checkpoint, loaded->config, *loaded->backend));
    loaded->model.emplace(loaded->config, std::move(weights), *loaded->backend);
    loaded->prefill_chunk = options.prefill_chunk;
    loaded->kv_type = options.precision == backend::Precision::bf16 ? Dtype::bf16 : Dtype::f32;
    return loaded;
}

}  // namespace dgemma::engine
