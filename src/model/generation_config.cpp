#include <string>

#include "model/config.h"
#include "model/json_fields.h"

namespace dgemma::model {

namespace {

constexpr double most = 1e6;

// sampler_config: {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1}; without a name it is that
// class.
Status read_sampler(const JsonFields& top, GenerationConfig& out) {
    DGEMMA_TRY(const JsonFields sampler, top.nested("sampler_config"));
    if (sampler.object() == nullptr) return {};
    DGEMMA_TRY(const std::string name, sampler.text("_cls_name", "EntropyBoundSamplerConfig"));
    if (name == "EntropyBoundSamplerConfig") {
        out.sampler = SamplerKind::entropy_bound;
    } else if (name == "ConfidenceThresholdSamplerConfig") {
        out.sampler = SamplerKind::confidence_threshold;
    } else {
        return sampler.unsupported("_cls_name",
                                   "\"EntropyBoundSamplerConfig\" and \"ConfidenceThresholdSamplerConfig\"");
    }
    DGEMMA_TRY(const double bound, sampler.number("entropy_bound", 0.1, most, false));
    out.entropy_bound = static_cast<float>(bound);
    const char* key = sampler.has("threshold") ? "threshold" : "confidence_threshold";
    DGEMMA_TRY(const double threshold, sampler.number(key, 0.9, 1, false));
    out.threshold = static_cast<float>(threshold);
    return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view where) {
    constexpr int most_id = 1 << 30;
    DGEMMA_TRY(const nlohmann::json root, parse_object(text, where));
    const JsonFields top(&root, std::string(where), "");
    GenerationConfig out;
    DGEMMA_TRY(out.max_new_tokens, top.integer("max_new_tokens", out.max_new_tokens, 1, 1 << 30));
    DGEMMA_TRY(out.max_denoising_steps,
               top.integer("max_denoising_steps", out.max_denoising_steps, 1, 1 << 20));
    DGEMMA_CHECK(read_sampler(top, out));

    // The older spelling nests what the newer one has at the top.
    DGEMMA_TRY(const JsonFields schedule, top.nested("linear_temperature_schedule_config"));
    DGEMMA_TRY(const JsonFields stopping, top.nested("diffusion_stopping_config"));
    const auto scope = [&](const char* key, const JsonFields& older) -> const JsonFields& {
        return top.has(key) ? top : older;
    };
    DGEMMA_TRY(out.t_min, scope("t_min", schedule).number("t_min", out.t_min, most, true));
    DGEMMA_TRY(out.t_max, scope("t_max", schedule).number("t_max", out.t_max, most, true));
    if (!(out.t_max > out.t_min)) {
        return scope("t_max", schedule)
            .wrong("t_max", "greater than t_min (" + std::to_string(out.t_min) + ")");
    }
    DGEMMA_TRY(out.stability_threshold,
               scope("stability_threshold", stopping)
                   .integer("stability_threshold", out.stability_threshold, 0, 1 << 20));
    DGEMMA_TRY(const double confidence,
               scope("confidence_threshold", stopping)
                   .number("confidence_threshold", GenerationConfig{}.confidence_threshold, most, false));
    out.confidence_threshold = static_cast<float>(confidence);

    DGEMMA_TRY(out.eos_ids, top.integers("eos_token_id", 0, most_id));
    DGEMMA_TRY(out.pad_id, top.integer("pad_token_id", out.pad_id, 0, most_id));
    DGEMMA_TRY(out.bos_id, top.integer("bos_token_id", out.bos_id, 0, most_id));
    return out;
}

}  // namespace dgemma::model
