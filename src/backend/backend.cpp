#include "backend/backend.h"

#include <fmt/core.h>

namespace dgemma::backend {

std::string_view name_of(Arithmetic kind) {
    switch (kind) {
        case Arithmetic::f32:
            return "f32";
        case Arithmetic::bf16:
            return "bf16";
        case Arithmetic::bytes:
            return "bytes";
    }
    return "?";
}

std::string_view name_of(Stage stage) {
    switch (stage) {
        case Stage::self_conditioning:
            return "self_conditioning";
        case Stage::attention:
            return "attention";
        case Stage::dense:
            return "dense";
        case Stage::experts:
            return "experts";
        case Stage::head:
            return "head";
    }
    return "?";
}

Result<std::unique_ptr<Weight>> Backend::prepare_encoded(const WeightView& host) {
    if (host.encoding == Encoding::plain && host.layout == Layout::rows)
        return prepare(Tensor{host.codes, host.type, host.shape});
    return Error{ErrorKind::unsupported, fmt::format("weights stored as {} cannot be computed with on {}",
                                                     name_of(host.encoding), name())};
}

void Backend::run_pass(std::span<const std::uint64_t>, const std::function<void()>& operations) {
    operations();
}

void Backend::attention_inputs(const AttentionInputs& a) {
    project(a.x, *a.q_proj, a.q);
    project(a.x, *a.k_proj, a.k);
    if (a.v_proj != nullptr) {
        project(a.x, *a.v_proj, a.v);
    } else {
        copy(a.k, a.v);
    }
    norm_heads(a.q, a.head_dim, a.q_norm, a.eps, a.frequencies, a.positions);
    norm_heads(a.k, a.head_dim, a.k_norm, a.eps, a.frequencies, a.positions);
    norm_heads(a.v, a.head_dim, nullptr, a.eps, nullptr, {});
}

void Backend::after_attention(const AfterAttention& a) {
    norm_then_add(a.branch, *a.norm, a.eps, a.h, a.h);
    rms_norm(a.h, a.dense_norm, a.eps, a.dense);
    rms_norm(a.h, a.experts_norm, a.eps, a.experts);
}

void Backend::branches(const Branches& b) {
    begin_stage(Stage::dense);
    gated_mlp(b.dense_in, *b.gate, *b.up, *b.down, b.dense);
    begin_stage(Stage::experts);
    route(b.h, b.router, b.routing);
    experts(b.experts_in, b.routing, *b.gate_up, *b.expert_down, b.experts);
}

void Backend::finish_layer(const LayerEnd& args, std::int32_t stage, const Weight* next_norm,
                           const Mat& next) {
    end_layer(args);
    watch(args.out, stage);
    if (next_norm != nullptr) rms_norm(args.out, next_norm, args.eps, next);
}

}  // namespace dgemma::backend
