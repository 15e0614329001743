// The two passes of DiffusionGemma: the causal encoder that fills the cache, and the decoder that denoises a
// canvas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace dgemma::model {

// Looks into a pass: goldens, `verify`. Called for every stage of every layer with what that stage produced.
class Probe {
  public:
    enum class Stage : std::uint8_t {
        input,      // what the first layer reads; in the decoder, after self-conditioning
        attention,  // o_proj's output
        dense,
        experts,  // the two branches, before their norms
        router,   // probabilities [n, E]
        layer,    // the layer's output
        hidden,   // after the final norm
    };
    virtual ~Probe() = default;
    virtual void see(Stage stage, int layer, std::span<const float> values) = 0;  // [n, cols], row-major
};

// Tokens of one sequence to be appended to its cache; at most cache->chunk() of them.
struct Prompt {
    KvCache* cache = nullptr;
    std::span<const std::int32_t> ids;
};

// One canvas to be denoised by one pass.
struct Canvas {
    const KvCache* cache = nullptr;
    std::span<const std::int32_t> ids;
    float temperature = 1;
    backend::Logits* logits = nullptr;  // in: zt of the previous pass, if self_condition; out: zt of this one
    bool self_condition = false;        // false in the first pass of a block
    // Out: the layer after which a row first held a NaN or an infinity; unset if none did before the head.
    std::optional<int> broken_layer = std::nullopt;
};

class Model {
  public:
    // The backend and the checkpoint behind the weights outlive the model.
    Model(const Config& config, Weights weights, backend::Backend& backend);

    [[nodiscard]] const Config& config() const { return config_; }
    [[nodiscard]] backend::Backend& backend() { return backend_; }

    // Encodes each prompt's tokens causally after what its cache holds (contract/model.md 5) and commits
    // them. Errors: io (memory), non_finite (names layer and position; nothing is committed).
    Status encode(std::span<const Prompt> prompts, Probe* probe = nullptr);
    // The same for one sequence of any length, chunk by chunk. The result does not depend on the cuts.
    Status encode(KvCache& cache, std::span<const std::int32_t> ids, Probe* probe = nullptr);

    // One denoising pass over each canvas (contract/model.md 6): fills its logits. Errors: io (memory). A row
    // that is not finite is reported in the logits' stats and in `broken_layer`.
    Status denoise(std::span<Canvas> canvases, Probe* probe = nullptr);

  private:
    struct Rows;  // who the rows of a call belong to
    Status prepare_workspace(std::int64_t rows);
    void run(const Rows& rows, const Probe* probe, std::vector<std::uint64_t> key,
             const std::function<void()>& operations);
    void layer(std::size_t l, const Rows& rows, const WeightPtr& scalar, const backend::Weight* last_norm,
               Probe* probe);
    void show(Probe* probe, Probe::Stage stage, int layer, const backend::Mat& values);

    const Config config_;
    Weights weights_;
    backend::Backend& backend_;
    float router_input_scale_;

    // Activations of a pass, grown to the largest one so far.
    std::int64_t capacity_ = 0;
    std::uint64_t workspace_ = 0;  // changes with the memory, and no two are alike
    std::vector<std::unique_ptr<backend::Storage>> memory_;
    backend::Mat x_, normed_, experts_in_, q_, k_, v_, heads_, branch_, sparse_, expert_ids_, expert_weights_,
        probabilities_;
};

}  // namespace dgemma::model
