// Operations of the CUDA backend but for the two branches of a layer.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"

namespace dgemma::backend::cuda {

namespace {
constexpr std::size_t canvases_of_a_reading = 4;  // in soft embeddings
}  // namespace

void CudaBackend::embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) {
    const Operation operation(*this, "embed");
    const auto on_device = inputs_.numbers(ids);
    cuda::embed(*context_, element_, on_device.get(), device(table).matrix(), scale, out.rows, out.data);
}

void CudaBackend::soft_embed(std::span<Logits* const> previous, const Weight& table, float scale,
                             const Mat& out) {
    const Operation operation(*this, "soft embed");
    const DeviceMatrix& matrix = device(table).matrix();
    // As with parts_for: a property of the table alone.
    const bool units = parts_fit(element_, matrix, true);
    const std::int64_t vocab = matrix.outs, by_tiles = 132 / (2 * ((out.cols + 255) / 256));
    const std::int64_t parts = units ? std::clamp<std::int64_t>(std::min(by_tiles, vocab / 1024), 1, 16) : 1;
    for (std::int64_t first = 0; !previous.empty();) {
        // Several canvases share a reading of the table; probabilities of all would take too much memory.
        const auto together = previous.first(std::min<std::size_t>(previous.size(), canvases_of_a_reading));
        previous = previous.subspan(together.size());
        std::int64_t rows = 0;
        for (const Logits* logits : together) rows += logits->rows();
        auto* p = static_cast<std::byte*>(context_->scratch(
            Scratch::probabilities, static_cast<std::size_t>(rows * vocab) * size_of(element_)));
        auto* own = p;
        for (Logits* logits : together) {
            auto& l = static_cast<DeviceLogits&>(*logits);
            logit_probabilities(*context_, element_, l.scores(), l.rows(), vocab, l.form(), l.device_stats(),
                                l.rounded_sums(), own);
            own += static_cast<std::size_t>(l.rows() * vocab) * size_of(element_);
        }
        float* sums = context_->scratch<float>(Scratch::partials, parts * rows * out.cols);
        if (units) {
            multiply_parts(*context_, p, rows, matrix, true, parts, sums);
        } else {
            multiply_any(*context_, element_, p, rows, matrix, true, {}, Element::f32, sums);
        }
        scale_rounded(*context_, element_, sums, parts, rows * out.cols, scale,
                      rows_of(out, first, rows).data);
        first += rows;
    }
}

void CudaBackend::add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) {
    const Operation operation(*this, "norms");
    cuda::add_then_norm(*context_, element_, a.data, b.data, a.rows, a.cols, eps, out.data);
}

void CudaBackend::rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) {
    const Operation operation(*this, "norms");
    cuda::rms_norm(*context_, element_, x.data, vector_or_null(weight), x.rows, x.cols, eps, out.data);
}

void CudaBackend::norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                                const Mat& out) {
    const Operation operation(*this, "norms");
    cuda::norm_then_add(*context_, element_, x.data, device(weight).vector(), residual.data, x.rows, x.cols,
                        eps, out.data);
}

void CudaBackend::project(const Mat& x, const Weight& weight, const Mat& out) {
    const Quantised known = quantised_attended_;
    const Operation operation(*this, "projections");
    if (device(weight).is_e4m3()) {
        const E4m3Rows rows = e4m3_of(x, known, Scratch::e4m3_rows);
        sm90_e4m3_multiply(*context_, rows, x.rows, &device(weight).e4m3(), &out.data, 1);
        return;
    }
    project_unsettled(x.data, x.rows, device(weight).matrix(), out);
}

void CudaBackend::norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps,
                             const Weight* frequencies, std::span<const std::int32_t> positions) {
    const Operation operation(*this, "heads");
    const auto on_device =
        inputs_.numbers(frequencies == nullptr ? std::span<const std::int32_t>{} : positions);
    const HeadsPart part{x.data, static_cast<int>(x.cols / head_dim), vector_or_null(weight),
                         vector_or_null(frequencies)};
    cuda::norm_heads(*context_, element_, &part, 1, x.rows, head_dim, eps, on_device.get());
}

void CudaBackend::attention_inputs(const AttentionInputs& a) {
    const Weight* const projections[] = {a.q_proj, a.k_proj, a.v_proj};
    void* const outs[] = {a.q.data, a.k.data, a.v.data};
    const int count = a.v_proj == nullptr ? 2 : 3;
    DeviceMatrix weights[3];
    E4m3Matrix codes[3];
    for (int i = 0; i < count; ++i)
        weights[i] = device(*projections[i]).matrix(), codes[i] = device(*projections[i]).e4m3();
    const auto in_e4m3 = [](const E4m3Matrix& m) { return m.codes != nullptr; };
    {
        const Quantised known = quantised_next_;
        const Operation operation(*this, "projections");
        if (std::any_of(codes, codes + count, in_e4m3)) {
            const E4m3Rows x = e4m3_of(a.x, known, Scratch::e4m3_rows);
            if (std::all_of(codes, codes + count, in_e4m3)) {
                sm90_e4m3_multiply(*context_, x, a.x.rows, codes, outs, count);
            } else {
                for (int i = 0; i < count; ++i) {
                    in_e4m3(codes[i]) ? sm90_e4m3_multiply(*context_, x, a.x.rows, codes + i, outs + i, 1)
                                      : multiply(*context_, element_, a.x.data, a.x.rows, weights[i], {},
                                                 element_, outs[i]);
                }
            }
        } else if (std::all_of(weights, weights + count,
                               [&](const DeviceMatrix& w) { return on_hopper(a.x.data, w); })) {
            sm90_multiply(*context_, a.x.data, a.x.rows, weights, outs, count, nullptr);
        } else {
            for (int i = 0; i < count; ++i)
                multiply(*context_, element_, a.x.data, a.x.rows, weights[i], {}, element_, outs[i]);
        }
    }
    const Operation operation(*this, "heads");
    const auto positions = inputs_.numbers(a.positions);
    const auto heads = [&](const Mat& m) { return static_cast<int>(m.cols / a.head_dim); };
    const float* frequencies = vector_or_null(a.frequencies);
    const HeadsPart parts[] = {
        {a.q.data, heads(a.q), vector_or_null(a.q_norm), frequencies},
        // Where there is no value projection, the value is the key's before norm and rotation.
        {a.k.data, heads(a.k), vector_or_null(a.k_norm), frequencies, count == 2 ? a.v.data : nullptr},
        {a.v.data, heads(a.v), nullptr, nullptr}};
    cuda::norm_heads(*context_, element_, parts, count, a.x.rows, a.head_dim, a.eps, positions.get());
}

void CudaBackend::after_attention(const AfterAttention& a) {
    const Operation operation(*this, "norms", keep);
    if (unsettled_sum_.target != a.branch.data) settle();
    AfterAttentionPointers p{};
    p.branch = take_addends(a.branch);
    settle();
    p.norm = vector_or_null(a.norm), p.dense_norm = vector_or_null(a.dense_norm);
    p.experts_norm = vector_or_null(a.experts_norm);
    p.h = a.h.data, p.dense = a.dense.data, p.experts = a.experts.data;
    if (a.router != nullptr) {
        p.router_scale = device(*a.router->scale).vector();
        p.router_input_scale = a.router->input_scale;
        p.router_in = router_input_of(a.h);
        if (std::int32_t* counters = facts(); counters != nullptr) p.counter = counters + dense_ready_at;
    }
    if (e4m3_activations_) {
        p.dense_codes = e4m3_room(Scratch::e4m3_dense, a.h.rows, a.h.cols);
        p.experts_codes = e4m3_room(Scratch::e4m3_experts, a.h.rows, a.h.cols);
    }
    cuda::after_attention(*context_, element_, p, a.h.rows, a.h.cols, a.eps);
    if (e4m3_activations_) {
        quantised_dense_ = {a.dense.data, {p.dense_codes.codes, p.dense_codes.scales}};
        quantised_experts_ = {a.experts.data, {p.experts_codes.codes, p.experts_codes.scales}};
    }
    routed_h_ = a.router != nullptr ? a.h.data : nullptr;
}

void CudaBackend::store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                           std::span<const std::int32_t> positions, int kv_heads) {
    const Operation operation(*this, "heads");
    if (segments.empty()) return;
    const auto on_device = inputs_.segments(segments);
    const auto numbers = inputs_.numbers(positions);
    cuda::store_kv(*context_, element_, cache_element(segments), k.data, v.data, on_device.get(),
                   static_cast<int>(segments.size()), numbers.get(), k.rows, kv_heads,
                   static_cast<int>(k.cols / kv_heads));
}

void CudaBackend::attention(const AttentionArgs& args) {
    const Operation operation(*this, "attention");
    if (args.segments.empty()) return;
    const auto segments = inputs_.segments(args.segments);
    const auto begin = inputs_.numbers(args.key_begin), end = inputs_.numbers(args.key_end);
    AttentionPointers p{};
    p.q = args.q.data, p.k = args.k.data, p.v = args.v.data, p.out = args.out.data;
    p.segments = segments.get();
    p.count = static_cast<int>(args.segments.size());
    p.rows = args.q.rows;
    for (const AttentionSegment& s : args.segments) {
        p.most_rows = std::max(p.most_rows, s.rows);
        p.any_canvas |= s.canvas_position >= 0;
    }
    p.key_begin = begin.get(), p.key_end = end.get();
    p.heads = args.heads, p.kv_heads = args.kv_heads, p.head_dim = args.head_dim;
    const Element cache = cache_element(args.segments);
    if (e4m3_activations_ && attention_leaves_e4m3(*context_, element_, cache, p))
        p.codes = e4m3_room(Scratch::e4m3_rows, p.rows, args.out.cols);
    cuda::attention(*context_, element_, cache, p);
    if (p.codes.codes != nullptr) quantised_attended_ = {args.out.data, {p.codes.codes, p.codes.scales}};
}

void CudaBackend::finish_layer(const LayerEnd& a, std::int32_t stage, const Weight* next_norm,
                               const Mat& next) {
    const Operation operation(*this, "norms", keep);
    FinishLayerPointers p{};
    if (unsettled_sum_.target != a.dense.data) settle_sum();
    p.dense = take_addends(a.dense);
    if (unsettled_experts_.target == a.sparse.data) {
        p.y = unsettled_experts_.y, p.place = unsettled_experts_.place;
        p.weights = unsettled_experts_.weights, p.k = unsettled_experts_.k;
        unsettled_experts_ = {};
    } else {
        settle();
        p.sparse = a.sparse.data;
    }
    p.residual = a.residual.data;
    p.dense_norm = vector_or_null(a.dense_norm), p.sparse_norm = vector_or_null(a.sparse_norm);
    p.norm = vector_or_null(a.norm), p.scalar = vector_or_null(a.scalar);
    p.out = a.out.data;
    p.stage = stage, p.marks = marks();
    p.next_norm = vector_or_null(next_norm), p.next = next.data;
    if (e4m3_activations_ && next_norm != nullptr)
        p.next_codes = e4m3_room(Scratch::e4m3_rows, a.residual.rows, a.residual.cols);
    cuda::finish_layer(*context_, element_, p, a.residual.rows, a.residual.cols, a.eps);
    if (p.next_codes.codes != nullptr)
        quantised_next_ = {next.data, {p.next_codes.codes, p.next_codes.scales}};
}

void CudaBackend::end_layer(const LayerEnd& args) {
    const Operation operation(*this, "norms");
    const LayerEndPointers p{args.residual.data,
                             args.dense.data,
                             args.sparse.data,
                             device(*args.dense_norm).vector(),
                             device(*args.sparse_norm).vector(),
                             device(*args.norm).vector(),
                             device(*args.scalar).vector(),
                             args.out.data};
    cuda::end_layer(*context_, element_, p, args.residual.rows, args.residual.cols, args.eps);
}

void CudaBackend::head(const HeadArgs& args) {
    const Operation operation(*this, "head");
    const DeviceMatrix& table = device(*args.table).matrix();
    for (auto rest = args.canvases; !rest.empty();) {
        // Canvases of one length that follow each other share a reading of the table.
        const std::int64_t length = rest[0].rows;
        const void* x = rows_of(args.x, rest[0].first_row, length).data;
        std::size_t count = 1;
        if (on_hopper(x, table) && sm90_multiplies_blocks(table, length)) {
            while (count < std::min(rest.size(), most_row_blocks) && rest[count].rows == length &&
                   rest[count].first_row == rest[count - 1].first_row + length)
                ++count;
        }
        const auto together = rest.first(count);
        rest = rest.subspan(count);
        std::vector<void*> scores;
        for (const HeadArgs::Canvas& canvas : together)
            scores.push_back(static_cast<DeviceLogits&>(*canvas.logits).scores());
        if (count > 1) {
            sm90_multiply_blocks(*context_, x, length, table, scores);
        } else {
            multiply(*context_, element_, x, length, table, {}, element_, scores[0]);
        }
        const Context::Stage statistics(*context_, "head statistics");
        for (const HeadArgs::Canvas& canvas : together) {
            static_cast<DeviceLogits&>(*canvas.logits)
                .take_statistics(args.softcap, inputs_.temperature(canvas).get());
        }
    }
}

void CudaBackend::watch(const Mat& x, std::int32_t stage) {
    const Operation operation(*this, "watch");
    cuda::watch(*context_, element_, x.data, x.rows, x.cols, stage, marks());
}

void CudaBackend::settle_sum() {
    if (unsettled_sum_.target == nullptr) return;
    const UnsettledSum& s = unsettled_sum_;
    add_parts(*context_, element_, s.sums, s.parts, s.count, s.target);
    unsettled_sum_ = {};
}

CudaBackend& CudaBackend::settle() {
    settle_sum();
    if (unsettled_experts_.target != nullptr) {
        const UnsettledExperts& e = unsettled_experts_;
        combine_experts(*context_, element_, e.y, e.place, e.weights, e.rows, e.k, e.cols, e.target);
        unsettled_experts_ = {};
    }
    return *this;
}

Addends CudaBackend::take_addends(const Mat& m) {
    if (unsettled_sum_.target != m.data) return {m.data, nullptr, 0};
    const Addends out{nullptr, unsettled_sum_.sums, unsettled_sum_.parts};
    unsettled_sum_ = {};
    return out;
}

E4m3Target CudaBackend::e4m3_room(Scratch which, std::int64_t rows, std::int64_t cols) {
    auto* codes = context_->scratch<std::uint8_t>(which, rows * cols + rows * std::int64_t{sizeof(float)});
    if (codes == nullptr) return {};
    return {codes, reinterpret_cast<float*>(codes + rows * cols)};
}

E4m3Rows CudaBackend::e4m3_of(const Mat& x, const Quantised& known, Scratch which) {
    if (known.of == x.data && known.rows.codes != nullptr) return known.rows;
    const E4m3Target to = e4m3_room(which, x.rows, x.cols);
    quantise_rows(*context_, x.data, x.rows, x.cols, to);
    return {to.codes, to.scales};
}

void CudaBackend::project_unsettled(const void* x, std::int64_t rows, const DeviceMatrix& weight,
                                    const Mat& out) {
    if (!on_hopper(x, weight)) {
        multiply(*context_, element_, x, rows, weight, {}, element_, out.data);
        return;
    }
    float* sums = nullptr;
    const std::int64_t parts = sm90_multiply(*context_, x, rows, &weight, &out.data, 1, &sums);
    if (parts > 1) unsettled_sum_ = {out.data, sums, parts, rows * weight.outs};
}
}  // namespace dgemma::backend::cuda
