#include "engine/loaded_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/thread_pool.h"
#include "base/weight_bytes.h"
#include "engine/device.h"
#include "model/weights.h"

namespace dgemma::engine {

namespace {

// e4m3_experts: of the checkpoint.
Result<std::unique_ptr<backend::Backend>> make_backend(const LoadOptions& options, bool e4m3_experts) {
    switch (options.backend) {
        case BackendKind::cuda:
            // Mixed is what lets operands become 8 bits where the weight has no more.
            return backend::make_cuda_backend(
                options.precision,
                {.device = options.device,
                 .most_bytes = options.vram,
                 .e4m3_activations = e4m3_experts && options.precision == backend::Precision::mixed});
        case BackendKind::reference:
            return backend::make_reference_backend(options.precision);
        case BackendKind::plain:
            break;
    }
    const int threads = options.threads > 0 ? options.threads : ThreadPool::default_threads();
    std::unique_ptr<backend::Backend> made =
        backend::make_plain_backend(options.precision, threads, options.cpu_isa, options.pin);
    if (made == nullptr) {
        return Error{
            ErrorKind::usage,
            fmt::format("this machine cannot run kernels for {}: leave --cpu-isa out, or choose from {}",
                        options.cpu_isa, fmt::join(backend::available_isas(), ", "))};
    }
    return made;
}

// What a GPU needs for the weights at least. 4- and 8-bit weights of the experts and the dense MLP stay as
// they are, others become bf16.
std::uint64_t gpu_weight_bytes(const files::Checkpoint& checkpoint) {
    std::uint64_t bytes = 0;
    for (const std::string& name : checkpoint.names()) {
        if (name.find("vision") != std::string::npos) continue;
        const std::optional<WeightView> view = checkpoint.weight(name);
        const auto grid = weight_grid(*view);
        if (!grid) continue;
        const bool branch =
            name.find(".experts.") != std::string::npos || name.find(".mlp.") != std::string::npos;
        bytes += view->encoding == Encoding::plain || branch
                     ? grid->total().total()
                     : 2 * static_cast<std::uint64_t>(view->elements());
    }
    return bytes;
}

// Before anything is allocated. Errors: io, with the numbers.
Status check_gpu_memory(const files::Checkpoint& checkpoint, const LoadOptions& options) {
    DGEMMA_TRY(const std::vector<Gpu> gpus, list_gpus());
    const auto gpu =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) { return g.index == options.device; });
    if (gpu == gpus.end()) return {};
    const std::uint64_t room = options.vram > 0 ? std::min(options.vram, gpu->free_bytes) : gpu->free_bytes;
    const std::uint64_t needed = gpu_weight_bytes(checkpoint);
    if (needed <= room) return {};
    const auto mebibytes = [](std::uint64_t bytes) { return (bytes + (1u << 20) - 1) >> 20; };
    return Error{
        ErrorKind::io,
        fmt::format("the weights take {} MiB of GPU memory and there are {} ({} free on {}{}): use a "
                    "smaller weight format (dgemma quantize), another GPU, or --device cpu",
                    mebibytes(needed), mebibytes(room), mebibytes(gpu->free_bytes), gpu->name,
                    options.vram > 0 ? fmt::format(", --vram {}", mebibytes(options.vram)) : "")};
}

}  // namespace

std::vector<std::string_view> cpu_isas() { return backend::available_isas(); }

Dtype kv_type_of(const LoadOptions& options, const model::Config& config) {
    if (options.kv) return *options.kv;
    const bool exact = options.precision == backend::Precision::f32 || config.dtype == Dtype::f32;
    return exact && options.precision != backend::Precision::bf16 ? Dtype::f32 : Dtype::bf16;
}

Result<std::unique_ptr<LoadedModel>> load_model(const files::Checkpoint& checkpoint,
                                                const LoadOptions& asked) {
    LoadOptions options = asked;
    if (options.backend == BackendKind::plain && !options.where.empty()) {
        DGEMMA_TRY(const Device device, choose_device(options.where));
        options.backend = device.backend;
        options.device = device.index;
    }
    if (options.threads < 0 || options.context < 0 || options.prefill_chunk < 1) {
        return Error{ErrorKind::usage,
                     "threads and context cannot be negative, and a prefill chunk has at least one token"};
    }
    if (options.backend == BackendKind::cuda && options.kv == Dtype::f16) {
        return Error{ErrorKind::usage,
                     "the CUDA backend keeps keys and values in bf16 or f32: leave --kv f16 out"};
    }
    if (options.threads > 0 && !ThreadPool::can_make(options.threads)) {
        return Error{ErrorKind::io,
                     fmt::format("the system does not make {} threads: ask for fewer with --threads",
                                 options.threads)};
    }
    auto loaded = std::make_unique<LoadedModel>();
    DGEMMA_TRY(loaded->config, model::read_config(checkpoint));
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
    auto& layers = loaded->config.text.layers;
    loaded->all_layers = static_cast<int>(layers.size());
    if (options.layers > 0 && static_cast<std::size_t>(options.layers) < layers.size())
        layers.resize(static_cast<std::size_t>(options.layers));
    loaded->context = options.context > 0 ? options.context : loaded->config.text.max_positions;
    const bool on_gpu = options.backend == BackendKind::cuda;
    if (on_gpu) DGEMMA_CHECK(check_gpu_memory(checkpoint, options));
    DGEMMA_TRY(loaded->backend, make_backend(options, model::experts_in_e4m3(checkpoint)));
    DGEMMA_TRY(model::Weights weights, model::load_weights(checkpoint, loaded->config, *loaded->backend));
    loaded->model.emplace(loaded->config, std::move(weights), *loaded->backend);
    loaded->prefill_chunk =
        on_gpu ? std::max(options.prefill_chunk, gpu_prefill_chunk) : options.prefill_chunk;
    // The GPU keeps keys in what it computes in.
    const bool gpu_bf16 = on_gpu && loaded->backend->precision() == backend::Precision::bf16;
    loaded->kv_type = !on_gpu || options.kv ? kv_type_of(options, loaded->config)
                      : gpu_bf16            ? Dtype::bf16
                                            : Dtype::f32;
    return loaded;
}

}  // namespace dgemma::engine
