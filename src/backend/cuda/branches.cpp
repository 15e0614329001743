// The router, the experts and the dense MLP of the CUDA backend.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"

namespace dgemma::backend::cuda {

void CudaBackend::gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                            const Mat& out) {
    const Operation operation(*this, "dense");
    gated_mlp_unsettled(x, {}, gate, up, down, out);
}

void CudaBackend::route(const Mat& h, const RouterWeights& weights, const Routing& out) {
    const Operation operation(*this, "router");
    routed_h_ = nullptr;
    route_now(h, weights, out);
}

void CudaBackend::experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                          const Mat& out) {
    const Operation operation(*this, "experts");
    experts_unsettled(x, {}, routing, gate_up, down, out, {});
    settle();
}

void CudaBackend::branches(const Branches& b) {
    const Quantised known_dense = quantised_dense_, known_experts = quantised_experts_;
    const Operation operation(*this, nullptr, keep);
    settle();
    begin_stage(Stage::experts);  // the dense MLP, too, which shares their kernel
    {
        const Context::Stage stage(*context_, "router");
        route_now(b.h, b.router, b.routing);
    }
    if (device(*b.gate_up).is_packed() && device(*b.gate).is_packed() &&
        sm90_packed_together(device(*b.gate_up).packed().packing, device(*b.gate).packed().packing)) {
        const Context::Stage stage(*context_, "experts and dense");
        packed_experts_unsettled(b.experts_in, b.routing, *b.gate_up, *b.expert_down, b.experts,
                                 packed_dense(b.dense_in, *b.gate, *b.up, *b.down, b.dense));
        return;
    }
    if (device(*b.gate_up).is_e4m3() && device(*b.gate).is_e4m3()) {
        const Context::Stage stage(*context_, "experts and dense");
        e4m3_experts_unsettled(b.experts_in, known_experts, b.routing, *b.gate_up, *b.expert_down, b.experts,
                               e4m3_dense(b.dense_in, known_dense, *b.gate, *b.up, *b.down, b.dense));
        return;
    }
    DenseBeside dense;
    const DeviceMatrix &gate = device(*b.gate).matrix(), &up = device(*b.up).matrix(),
                       &down = device(*b.down).matrix();
    if (experts_on_hopper(b.experts_in, device(*b.gate_up).matrix(), device(*b.expert_down).matrix()) &&
        on_hopper(b.dense_in.data, gate) && on_hopper(b.dense_in.data, up) &&
        on_hopper(b.dense_in.data, down)) {
        dense.x = b.dense_in.data, dense.y = b.dense.data;
        dense.rows = b.dense_in.rows;
        dense.gate = gate, dense.up = up, dense.down = down;
        dense.act = context_->scratch(Scratch::activation,
                                      static_cast<std::size_t>(dense.rows * gate.outs) * size_of(element_));
    } else {
        const Context::Stage stage(*context_, "dense");
        gated_mlp_unsettled(b.dense_in, known_dense, *b.gate, *b.up, *b.down, b.dense);
        settle();
    }
    const Context::Stage stage(*context_, dense.rows > 0 ? "experts and dense" : "experts");
    experts_unsettled(b.experts_in, known_experts, b.routing, *b.gate_up, *b.expert_down, b.experts, dense);
}

E4m3Target CudaBackend::e4m3_hidden_room(Scratch which, std::int64_t rows, std::int64_t width) {
    const std::int64_t scales = rows * hidden_scales(width) * std::int64_t{sizeof(float)};
    auto* codes = context_->scratch<std::uint8_t>(which, rows * width + scales);
    if (codes == nullptr) return {};
    return {codes, reinterpret_cast<float*>(codes + rows * width)};
}

E4m3Dense CudaBackend::e4m3_dense(const Mat& x, const Quantised& known, const Weight& gate, const Weight& up,
                                  const Weight& down, const Mat& out) {
    E4m3Dense dense;
    if (!device(gate).is_e4m3() || !device(up).is_e4m3() || !device(down).is_e4m3()) {
        mixed_packings();
        return dense;
    }
    dense.gate = device(gate).e4m3(), dense.up = device(up).e4m3(), dense.down = device(down).e4m3();
    dense.x = e4m3_of(x, known, Scratch::e4m3_dense);
    dense.rows = x.rows, dense.y = out.data;
    dense.hidden = e4m3_hidden_room(Scratch::e4m3_dense_hidden, x.rows, dense.gate.outs);
    return dense;
}

void CudaBackend::e4m3_experts_unsettled(const Mat& x, const Quantised& known, const Routing& routing,
                                         const Weight& gate_up, const Weight& down, const Mat& out,
                                         const E4m3Dense& dense) {
    if (!device(gate_up).is_e4m3() || !device(down).is_e4m3()) return mixed_packings();
    const E4m3Matrix &first = device(gate_up).e4m3(), &second = device(down).e4m3();
    if (!sm90_experts_fit(first.groups, x.cols, second.ins)) return mixed_packings();
    const Places places = ordered_places(x, routing, first.groups);
    if (places.offsets == nullptr) return;
    const E4m3Rows codes = e4m3_of(x, known, Scratch::e4m3_experts);
    const E4m3Target hidden = e4m3_hidden_room(Scratch::e4m3_hidden, places.pairs, second.ins);
    void* y = pair_rows(Scratch::expert_rows, places, x.cols);
    sm90_e4m3_experts(*context_, codes, first, second, places, hidden, y, dense);
    leave_unsettled(x, routing, places, y, out);
}

PackedDense CudaBackend::packed_dense(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                                      const Mat& out) {
    PackedDense dense;
    dense.x = x.data, dense.y = out.data, dense.rows = x.rows;
    dense.gate = device(gate).packed(), dense.up = device(up).packed(), dense.down = device(down).packed();
    if (dense.up.packing != dense.gate.packing || dense.down.packing != dense.gate.packing) mixed_packings();
    dense.act = context_->scratch(Scratch::activation,
                                  static_cast<std::size_t>(x.rows * dense.gate.outs) * size_of(element_));
    return dense;
}

void CudaBackend::mixed_packings() {
    context_->fail(ErrorKind::unsupported,
                   "the matrices of a gated MLP are not all of one 4- or 8-bit format, or only some of "
                   "their shapes are multiples of 64: use another weight format for this model");
}

void CudaBackend::gated_mlp_unsettled(const Mat& x, const Quantised& known, const Weight& gate,
                                      const Weight& up, const Weight& down, const Mat& out) {
    if (device(gate).is_e4m3() || device(up).is_e4m3() || device(down).is_e4m3()) {
        const E4m3Dense dense = e4m3_dense(x, known, gate, up, down, out);
        Places places;
        places.ready = context_->scratch<std::int32_t>(Scratch::dense_ready, 2);
        if (context_->failed()) return;
        fill(*context_, places.ready, 2, 0);
        sm90_e4m3_experts(*context_, {}, {}, {}, places, {}, nullptr, dense);
        return;
    }
    if (device(gate).is_packed() || device(up).is_packed() || device(down).is_packed()) {
        const PackedDense dense = packed_dense(x, gate, up, down, out);
        Places places;
        places.ready = context_->scratch<std::int32_t>(Scratch::dense_ready, 2);
        if (context_->failed()) return;
        fill(*context_, places.ready, 2, 0);
        sm90_packed_experts(*context_, nullptr, {}, {}, places, nullptr, nullptr, dense);
        return;
    }
    const std::int64_t width = gate.shape()[0];
    void* act =
        context_->scratch(Scratch::activation, static_cast<std::size_t>(x.rows * width) * size_of(element_));
    multiply_gated(*context_, element_, x.data, x.rows, device(gate).matrix(), device(up).matrix(), act);
    project_unsettled(act, x.rows, device(down).matrix(), out);
}

void* CudaBackend::router_input_of(const Mat& h) {
    return context_->scratch(Scratch::router_input,
                             static_cast<std::size_t>(h.rows * h.cols) * size_of(element_));
}

void CudaBackend::route_now(const Mat& h, const RouterWeights& weights, const Routing& out) {
    const DeviceMatrix& proj = device(*weights.proj).matrix();
    void* a = router_input_of(h);
    const bool input_made = routed_h_ == h.data;
    if (!input_made) {
        router_input(*context_, element_, h.data, device(*weights.scale).vector(), weights.input_scale,
                     h.rows, h.cols, weights.eps, a);
    }
    routed_h_ = nullptr;
    const Places places = places_for(h.rows * out.ids.cols, proj.outs);
    if (places.offsets == nullptr) return;
    router_kernel_ = 0;
    auto* ids = static_cast<std::int32_t*>(out.ids.data);
    auto* shares = static_cast<float*>(out.weights.data);
    auto* probabilities = static_cast<float*>(out.probabilities.data);
    const float* scale = device(*weights.per_expert_scale).vector();
    const std::int64_t k = out.ids.cols;
    ordered_ids_ = ids;
    if (element_ == Element::bf16 && sm90_router_fits(*context_, proj, k)) {
        // Who made the input has also cleared the dense MLP's counter (after_attention).
        const bool next_beside = input_made && sm90_router_orders(h.rows, k, proj.outs);
        sm90_router(*context_, a, proj, scale, h.rows, k, ids, shares, probabilities, next_beside, places);
        if (next_beside) router_kernel_ = context_->kernels();
        return;
    }
    const bool units = parts_fit(element_, proj, false);
    const std::int64_t parts = units ? std::clamp<std::int64_t>(h.cols / 256, 1, 16) : 1;
    float* sums = context_->scratch<float>(Scratch::router_logits, parts * h.rows * proj.outs);
    if (units) {
        multiply_parts(*context_, a, h.rows, proj, false, parts, sums);
    } else {
        multiply_any(*context_, element_, a, h.rows, proj, false, {}, Element::f32, sums);
    }
    choose_experts(*context_, element_, sums, parts, scale, h.rows, proj.outs, k, ids, shares, probabilities,
                   places);
}

Places CudaBackend::places_for(std::int64_t pairs, std::int64_t experts) {
    Places places;
    auto* numbers = context_->scratch<std::int32_t>(Scratch::places, 2 * (experts + 1) + 1 + 2 * pairs);
    std::int32_t* counters = facts();
    if (numbers == nullptr || counters == nullptr) return places;
    places.pairs = pairs;
    places.offsets = numbers;
    places.ready = places.offsets + experts + 1;
    places.place = places.ready + experts + 2;
    places.row_at = places.place + pairs;
    places.facts = counters;
    places.tickets = counters + tickets_at;
    places.masks = reinterpret_cast<std::uint32_t*>(counters + masks_at);
    return places;
}

Places CudaBackend::ordered_places(const Mat& x, const Routing& routing, std::int64_t experts) {
    const std::int64_t k = routing.ids.cols;
    const auto* ids = static_cast<const std::int32_t*>(routing.ids.data);
    Places places = places_for(x.rows * k, experts);
    if (places.offsets == nullptr || context_->failed()) return {};
    if (ordered_ids_ != ids) sort_pairs(*context_, ids, x.rows, k, experts, places);
    ordered_ids_ = nullptr;
    places.router = router_kernel_;
    if (router_kernel_ > 0) places.dense_ready = places.facts + dense_ready_at;
    router_kernel_ = 0;
    return places;
}

void CudaBackend::leave_unsettled(const Mat& x, const Routing& routing, const Places& places, const void* y,
                                  const Mat& out) {
    unsettled_experts_ = {
        out.data,         y,     places.place, static_cast<const float*>(routing.weights.data), x.rows,
        routing.ids.cols, x.cols};
}

void CudaBackend::packed_experts_unsettled(const Mat& x, const Routing& routing, const Weight& gate_up,
                                           const Weight& down, const Mat& out, const PackedDense& dense) {
    const PackedMatrix &first = device(gate_up).packed(), &second = device(down).packed();
    if (first.packing != second.packing || !sm90_experts_fit(first.groups, x.cols, second.ins))
        mixed_packings();
    const Places places = ordered_places(x, routing, first.groups);
    if (places.offsets == nullptr) return;
    void* act = pair_rows(Scratch::expert_hidden, places, second.ins);
    void* y = pair_rows(Scratch::expert_rows, places, x.cols);
    sm90_packed_experts(*context_, x.data, first, second, places, act, y, dense);
    leave_unsettled(x, routing, places, y, out);
}

void CudaBackend::experts_unsettled(const Mat& x, const Quantised& known, const Routing& routing,
                                    const Weight& gate_up, const Weight& down, const Mat& out,
                                    const DenseBeside& dense) {
    if (device(gate_up).is_e4m3() || device(down).is_e4m3())
        return e4m3_experts_unsettled(x, known, routing, gate_up, down, out, {});
    if (device(gate_up).is_packed() || device(down).is_packed()) {
        packed_experts_unsettled(x, routing, gate_up, down, out, {});
        return;
    }
    const DeviceMatrix &first = device(gate_up).matrix(), &second = device(down).matrix();
    const std::int64_t width = second.ins;
    const Places places = ordered_places(x, routing, first.groups);
    if (places.offsets == nullptr) return;
    void* act = pair_rows(Scratch::expert_hidden, places, width);
    void* y = pair_rows(Scratch::expert_rows, places, x.cols);
    if (experts_on_hopper(x, first, second)) {
        sm90_experts(*context_, x.data, first, second, places, act, y, dense);
    } else {
        const Groups groups{places.offsets, first.groups};
        void* sorted = pair_rows(Scratch::sorted_rows, places, x.cols);
        void* gu = pair_rows(Scratch::gate, places, 2 * width);
        gather_rows(*context_, element_, x.data, places.row_at, places.pairs, x.cols, sorted);
        // An expert has at most one row of each token.
        multiply(*context_, element_, sorted, x.rows, first, groups, element_, gu);
        gelu_times(*context_, element_, gu,
                   static_cast<std::byte*>(gu) + static_cast<std::size_t>(width) * size_of(element_),
                   places.pairs, width, 2 * width, act);
        multiply(*context_, element_, act, x.rows, second, groups, element_, y);
    }
    leave_unsettled(x, routing, places, y, out);
}
}  // namespace dgemma::backend::cuda
