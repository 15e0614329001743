// A model with the backend it runs on, as a Generator and a measurement load it.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "base/result.h"
#include "engine/generator.h"
#include "files/checkpoint.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/kv_cache.h"

namespace dgemma::engine {

struct LoadedModel {
    model::Config config;
    model::GenerationConfig generation;
    int context = 0;
    int all_layers = 0;  // of the checkpoint; config has those that are loaded
    std::unique_ptr<backend::Backend> backend;
    std::optional<model::Model> model;
    std::int64_t prefill_chunk = 0;  // tokens of one encode call
    Dtype kv_type = Dtype::f32;      // of keys and values

    // An empty cache for a sequence of this model. rewind_tokens: as KvCache takes it.
    [[nodiscard]] model::KvCache new_cache(std::int64_t rewind_tokens = 0) const {
        return {config, *backend, prefill_chunk, kv_type, rewind_tokens};
    }
};

// What keys and values are kept in (LoadOptions::kv).
Dtype kv_type_of(const LoadOptions& options, const model::Config& config);

// The checkpoint must outlive the model. Errors: those of the files (not_found, invalid, unsupported), usage.
Result<std::unique_ptr<LoadedModel>> load_model(const files::Checkpoint& checkpoint,
                                                const LoadOptions& options);

}  // namespace dgemma::engine
