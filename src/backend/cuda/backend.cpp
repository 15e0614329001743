// The operations of backend.h on the device: each finds its inputs there and launches kernels.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include <fmt/core.h>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"

namespace dgemma::backend {

namespace cuda {

namespace {

const DeviceWeight& device(const Weight& w) { return static_cast<const DeviceWeight&>(w); }
const float* vector_or_null(const Weight* w) { return w == nullptr ? nullptr : device(*w).vector(); }

class CudaBackend final : public Backend {
  public:
    CudaBackend(std::unique_ptr<Context> context, Element element)
        : context_(std::move(context)), element_(element), inputs_(*context_) {}

    [[nodiscard]] std::string_view name() const override { return "cuda"; }
    [[nodiscard]] Precision precision() const override {
        return element_ == Element::bf16 ? Precision::bf16 : Precision::f32;
    }
    [[nodiscard]] std::size_t activation_bytes() const override { return size_of(element_); }
    [[nodiscard]] Context& context() { return *context_; }

    // --- memory

    Result<std::unique_ptr<Storage>> allocate(std::size_t bytes) override {
        DGEMMA_TRY(auto storage, DeviceStorage::make(*context_, bytes));
        return std::unique_ptr<Storage>(std::move(storage));
    }

    Result<std::unique_ptr<Weight>> prepare(const Tensor& host) override {
        DGEMMA_TRY(auto weight, DeviceWeight::upload(*context_, host));
        return std::unique_ptr<Weight>(std::move(weight));
    }

    // Encoded weights become numbers, except where a kernel reads them as they are.
    Result<std::unique_ptr<Weight>> prepare_encoded(const WeightView& host) override {
        if (host.encoding == Encoding::plain && host.layout == Layout::rows)
            return prepare(Tensor{host.codes, host.type, host.shape});
        const bool half = element_ == Element::bf16 || host.encoding == Encoding::plain;
        DGEMMA_TRY(auto weight, DeviceWeight::unpack(*context_, host, half ? Element::bf16 : Element::f32));
        return std::unique_ptr<Weight>(std::move(weight));
    }
    Result<std::unique_ptr<Weight>> prepare_branch(const WeightView& host) override {
        if (!packs() || !DeviceWeight::packable(host.shape, host.encoding)) return prepare_encoded(host);
        DGEMMA_TRY(auto weight, DeviceWeight::pack(*context_, host));
        return std::unique_ptr<Weight>(std::move(weight));
    }
    // Whether weights of the dense MLP and the experts stay in 4 and 8 bits.
    [[nodiscard]] bool packs() const { return context_->hopper() && element_ == Element::bf16; }

    Result<std::unique_ptr<Logits>> make_logits(std::int64_t rows, std::int64_t vocab) override {
        DGEMMA_TRY(auto logits, DeviceLogits::make(*context_, element_, rows, vocab));
        return std::unique_ptr<Logits>(std::move(logits));
    }

    void set_logits(Logits& logits, std::span<const float> zt) override {
        context_->enter();
        settle();
        auto& own = static_cast<DeviceLogits&>(logits);
        upload(zt, {own.scores(), own.rows(), own.vocab()});
        own.take_statistics(0, nullptr);
    }

    void download(const Mat& from, std::span<float> to) override {
        context_->enter();
        settle();
        if (element_ == Element::f32) {
            context_->to_host(to.data(), from.data, to.size_bytes(), "reading results");
            return;
        }
        std::vector<std::uint16_t> half(to.size());
        context_->to_host(half.data(), from.data, half.size() * 2, "reading results");
        std::transform(half.begin(), half.end(), to.begin(), bf16_to_f32);
    }

    void upload(std::span<const float> from, const Mat& to) override {
        context_->enter();
        settle();
        ordered_ids_ = routed_h_ = nullptr;
        if (element_ == Element::f32) {
            context_->to_device(to.data, from.data(), from.size_bytes(), "uploading values");
        } else {
            std::vector<std::uint16_t> half(from.size());
            std::transform(from.begin(), from.end(), half.begin(), f32_to_bf16);
            context_->to_device(to.data, half.data(), half.size() * 2, "uploading values");
        }
        context_->synchronize("uploading values");
    }

    void read_memory(const void* from, std::span<std::byte> to) override {
        context_->enter();
        settle();
        context_->to_host(to.data(), from, to.size(), "reading memory");
    }

    void fill_zero(const Mat& to) override {
        settle();
        context_->nothing_early();
        const auto bytes = static_cast<std::size_t>(to.rows * to.cols) * activation_bytes();
        context_->check(cudaMemsetAsync(to.data, 0, bytes, context_->stream()), "filling with zeros");
    }

    void copy(const Mat& from, const Mat& to) override {
        settle();
        context_->nothing_early();
        const auto bytes = static_cast<std::size_t>(from.rows * from.cols) * activation_bytes();
        context_->check(
            cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, context_->stream()),
            "copying values");
    }

    // --- the frame of a pass

    Status begin_pass(const PassInputs& inputs) override {
        context_->enter();
        DGEMMA_CHECK(context_->take_failure());
        forget_unsettled();
        DGEMMA_CHECK(inputs_.stage(inputs));
        const auto rows = static_cast<std::size_t>(inputs.rows);
        if (marks_ == nullptr || marks_->bytes() < rows * sizeof(std::int32_t)) {
            marks_.reset();
            DGEMMA_TRY(marks_, DeviceStorage::make(*context_, 2 * rows * sizeof(std::int32_t)));
            DGEMMA_CHECK(host_marks_.reserve(2 * rows * sizeof(std::int32_t)));
            context_->memory_moved();
        }
        rows_ = inputs.rows;
        fill(*context_, marks(), rows_, -1);
        return context_->take_failure();
    }

    Result<std::span<const std::int32_t>> end_pass() override {
        context_->enter();
        settle();
        const auto bytes = static_cast<std::size_t>(rows_) * sizeof(std::int32_t);
        context_->to_host(host_marks_.data(), marks_ == nullptr ? nullptr : marks(), bytes, "a pass");
        inputs_.forget();
        DGEMMA_CHECK(context_->take_failure());
        return std::span<const std::int32_t>(reinterpret_cast<const std::int32_t*>(host_marks_.data()),
                                             static_cast<std::size_t>(rows_));
    }

    // The first pass of a key runs as it comes, since working memory may still grow; the second is recorded.
    void run_pass(std::span<const std::uint64_t> key, const std::function<void()>& operations) override {
        if (context_->failed() || context_->profiling()) return operations();
        std::vector<std::uint64_t> full_key(key.begin(), key.end());
        for (const HeadArgs::Canvas& canvas : inputs_.canvases())
            full_key.push_back(static_cast<const DeviceLogits&>(*canvas.logits).number());
        Recording& recording = recordings_[full_key];
        if (recording.graph != nullptr && recording.generation == context_->generation()) {
            context_->check(cudaGraphLaunch(recording.graph.get(), context_->stream()), "repeating a pass");
            context_->nothing_early();
            return;
        }
        const bool ready = recording.generation == context_->generation();
        recording.graph.reset();
        if (!ready || !record(operations, recording)) {
            operations();
            recording.generation = context_->generation();
        }
        if (recordings_.size() > most_recordings) {
            context_->synchronize("a pass");
            recordings_.clear();
        }
    }

    void embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) override {
        const Operation operation(*this, "embed");
        const auto on_device = inputs_.numbers(ids);
        cuda::embed(*context_, element_, on_device.get(), device(table).matrix(), scale, out.rows, out.data);
    }

    void soft_embed(Logits& previous, const Weight& table, float scale, const Mat& out) override {
        const Operation operation(*this, "soft embed");
        auto& logits = static_cast<DeviceLogits&>(previous);
        const DeviceMatrix& matrix = device(table).matrix();
        const std::int64_t vocab = logits.vocab(), rows = out.rows;
        void* p = context_->scratch(Scratch::probabilities,
                                    static_cast<std::size_t>(rows * vocab) * size_of(element_));
        logit_probabilities(*context_, element_, logits.scores(), rows, vocab, logits.form(),
                            logits.device_stats(), logits.rounded_sums(), p);
        // As with parts_for: a property of the table alone.
        const bool units = parts_fit(element_, matrix, true);
        const std::int64_t by_tiles = 132 / (2 * ((out.cols + 255) / 256));
        const std::int64_t parts =
            units ? std::clamp<std::int64_t>(std::min(by_tiles, vocab / 1024), 1, 16) : 1;
        float* sums = context_->scratch<float>(Scratch::partials, parts * rows * out.cols);
        if (units) {
            multiply_parts(*context_, p, rows, matrix, true, parts, sums);
        } else {
            multiply_any(*context_, element_, p, rows, matrix, true, {}, Element::f32, sums);
        }
        scale_rounded(*context_, element_, sums, parts, rows * out.cols, scale, out.data);
    }

    void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) override {
        const Operation operation(*this, "norms");
        cuda::add_then_norm(*context_, element_, a.data, b.data, a.rows, a.cols, eps, out.data);
    }

    // --- norms and projections

    void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) override {
        const Operation operation(*this, "norms");
        cuda::rms_norm(*context_, element_, x.data, vector_or_null(weight), x.rows, x.cols, eps, out.data);
    }

    void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                       const Mat& out) override {
        const Operation operation(*this, "norms");
        cuda::norm_then_add(*context_, element_, x.data, device(weight).vector(), residual.data, x.rows,
                            x.cols, eps, out.data);
    }

    void project(const Mat& x, const Weight& weight, const Mat& out) override {
        const Operation operation(*this, "projections");
        project_unsettled(x.data, x.rows, device(weight).matrix(), out);
    }

    void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                   const Mat& out) override {
        const Operation operation(*this, "dense");
        gated_mlp_unsettled(x, gate, up, down, out);
    }

    // --- attention

    void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps, const Weight* frequencies,
                    std::span<const std::int32_t> positions) override {
        const Operation operation(*this, "heads");
        const auto on_device =
            inputs_.numbers(frequencies == nullptr ? std::span<const std::int32_t>{} : positions);
        const HeadsPart part{x.data, static_cast<int>(x.cols / head_dim), vector_or_null(weight),
                             vector_or_null(frequencies)};
        cuda::norm_heads(*context_, element_, &part, 1, x.rows, head_dim, eps, on_device.get());
    }

    void attention_inputs(const AttentionInputs& a) override {
        const DeviceMatrix weights[] = {device(*a.q_proj).matrix(), device(*a.k_proj).matrix(),
                                        a.v_proj == nullptr ? DeviceMatrix{} : device(*a.v_proj).matrix()};
        void* const outs[] = {a.q.data, a.k.data, a.v.data};
        const int count = a.v_proj == nullptr ? 2 : 3;
        {
            const Operation operation(*this, "projections");
            if (std::all_of(weights, weights + count,
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

    void after_attention(const AfterAttention& a) override {
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
        }
        cuda::after_attention(*context_, element_, p, a.h.rows, a.h.cols, a.eps);
        routed_h_ = a.router != nullptr ? a.h.data : nullptr;
    }

    void store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                  std::span<const std::int32_t> positions, int kv_heads) override {
        const Operation operation(*this, "heads");
        if (segments.empty()) return;
        const auto on_device = inputs_.segments(segments);
        const auto numbers = inputs_.numbers(positions);
        cuda::store_kv(*context_, element_, cache_element(segments), k.data, v.data, on_device.get(),
                       static_cast<int>(segments.size()), numbers.get(), k.rows, kv_heads,
                       static_cast<int>(k.cols / kv_heads));
    }

    void attention(const AttentionArgs& args) override {
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
        cuda::attention(*context_, element_, cache_element(args.segments), p);
    }

    // --- experts

    void route(const Mat& h, const RouterWeights& weights, const Routing& out) override {
        const Operation operation(*this, "router");
        routed_h_ = nullptr;
        route_now(h, weights, out);
    }

    void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 const Mat& out) override {
        const Operation operation(*this, "experts");
        experts_unsettled(x, routing, gate_up, down, out, {});
        settle();
    }

    void branches(const Branches& b) override {
        const Operation operation(*this, nullptr, keep);
        settle();
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
        DenseBeside dense;
        const DeviceMatrix &gate = device(*b.gate).matrix(), &up = device(*b.up).matrix(),
                           &down = device(*b.down).matrix();
        if (experts_on_hopper(b.experts_in, device(*b.gate_up).matrix(), device(*b.expert_down).matrix()) &&
            on_hopper(b.dense_in.data, gate) && on_hopper(b.dense_in.data, up) &&
            on_hopper(b.dense_in.data, down)) {
            dense.x = b.dense_in.data, dense.y = b.dense.data;
            dense.rows = b.dense_in.rows;
            dense.gate = gate, dense.up = up, dense.down = down;
            dense.act = context_->scratch(
                Scratch::activation, static_cast<std::size_t>(dense.rows * gate.outs) * size_of(element_));
        } else {
            const Context::Stage stage(*context_, "dense");
            gated_mlp_unsettled(b.dense_in, *b.gate, *b.up, *b.down, b.dense);
            settle();
        }
        const Context::Stage stage(*context_, dense.rows > 0 ? "experts and dense" : "experts");
        experts_unsettled(b.experts_in, b.routing, *b.gate_up, *b.expert_down, b.experts, dense);
    }

    void finish_layer(const LayerEnd& a, std::int32_t stage, const Weight* next_norm,
                      const Mat& next) override {
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
        cuda::finish_layer(*context_, element_, p, a.residual.rows, a.residual.cols, a.eps);
    }

    void end_layer(const LayerEnd& args) override {
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

    // --- the end of a pass

    void head(const HeadArgs& args) override {
        const Operation operation(*this, "head");
        for (const HeadArgs::Canvas& canvas : args.canvases) {
            auto& logits = static_cast<DeviceLogits&>(*canvas.logits);
            const auto temperature = inputs_.temperature(canvas);
            const auto* x = static_cast<const std::byte*>(args.x.data) +
                            static_cast<std::size_t>(canvas.first_row * args.x.cols) * size_of(element_);
            multiply(*context_, element_, x, canvas.rows, device(*args.table).matrix(), {}, element_,
                     logits.scores());
            const Context::Stage statistics(*context_, "head statistics");
            logits.take_statistics(args.softcap, temperature.get());
        }
    }

    void watch(const Mat& x, std::int32_t stage) override {
        const Operation operation(*this, "watch");
        cuda::watch(*context_, element_, x.data, x.rows, x.cols, stage, marks());
    }

    PassFacts take_facts() override {
        context_->enter();
        PassFacts out;
        if (facts_ == nullptr) return out;
        std::int32_t seen[2] = {};
        context_->to_host(seen, facts_->data(), sizeof seen, "reading facts");
        clear_facts();
        if (seen[1] > 0) out.fewest_experts = seen[0], out.most_expert_rows = seen[1];
        return out;
    }

  private:
    // The frame of every operation: what an earlier one left to a later one is done now, unless this is the
    // later one.
    enum Unsettled : std::uint8_t { settle_first, keep };
    class Operation {
      public:
        Operation(CudaBackend& backend, const char* stage, Unsettled unsettled = settle_first)
            : settled_(unsettled == settle_first ? &backend.settle() : &backend),
              stage_(backend.context(), stage) {}

      private:
        CudaBackend* settled_;
        Context::Stage stage_;
    };

    [[nodiscard]] bool on_hopper(const void* x, const DeviceMatrix& weight) const {
        return weight.data != nullptr && context_->hopper() && parts_fit(element_, weight, false) &&
               sm90_fits(x, weight);
    }

    // --- results that wait for the operation that reads them, which can finish them on the way
    struct UnsettledSum {
        void* target = nullptr;  // of rb(sum over parts)
        const float* sums = nullptr;
        std::int64_t parts = 0, count = 0;
    };
    struct UnsettledExperts {
        void* target = nullptr;
        const void* y = nullptr;
        const std::int32_t* place = nullptr;
        const float* weights = nullptr;
        std::int64_t rows = 0, k = 0, cols = 0;
    };
    void settle_sum() {
        if (unsettled_sum_.target == nullptr) return;
        const UnsettledSum& s = unsettled_sum_;
        add_parts(*context_, element_, s.sums, s.parts, s.count, s.target);
        unsettled_sum_ = {};
    }
    CudaBackend& settle() {
        settle_sum();
        if (unsettled_experts_.target != nullptr) {
            const UnsettledExperts& e = unsettled_experts_;
            combine_experts(*context_, element_, e.y, e.place, e.weights, e.rows, e.k, e.cols, e.target);
            unsettled_experts_ = {};
        }
        return *this;
    }
    void forget_unsettled() {
        unsettled_sum_ = {};
        unsettled_experts_ = {};
    }
    Addends take_addends(const Mat& m) {
        if (unsettled_sum_.target != m.data) return {m.data, nullptr, 0};
        const Addends out{nullptr, unsettled_sum_.sums, unsettled_sum_.parts};
        unsettled_sum_ = {};
        return out;
    }

    void project_unsettled(const void* x, std::int64_t rows, const DeviceMatrix& weight, const Mat& out) {
        if (!on_hopper(x, weight)) {
            multiply(*context_, element_, x, rows, weight, {}, element_, out.data);
            return;
        }
        float* sums = nullptr;
        const std::int64_t parts = sm90_multiply(*context_, x, rows, &weight, &out.data, 1, &sums);
        if (parts > 1) unsettled_sum_ = {out.data, sums, parts, rows * weight.outs};
    }

    // The dense MLP of packed weights; its three are packed alike or not at all.
    PackedDense packed_dense(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                             const Mat& out) {
        PackedDense dense;
        dense.x = x.data, dense.y = out.data, dense.rows = x.rows;
        dense.gate = device(gate).packed(), dense.up = device(up).packed(),
        dense.down = device(down).packed();
        if (dense.up.packing != dense.gate.packing || dense.down.packing != dense.gate.packing)
            mixed_packings();
        dense.act = context_->scratch(Scratch::activation,
                                      static_cast<std::size_t>(x.rows * dense.gate.outs) * size_of(element_));
        return dense;
    }
    void mixed_packings() {
        context_->fail(ErrorKind::unsupported,
                       "the matrices of a gated MLP are not all of one 4- or 8-bit format, or only some of "
                       "their shapes are multiples of 64: use another weight format for this model");
    }

    void gated_mlp_unsettled(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                             const Mat& out) {
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
        void* act = context_->scratch(Scratch::activation,
                                      static_cast<std::size_t>(x.rows * width) * size_of(element_));
        multiply_gated(*context_, element_, x.data, x.rows, device(gate).matrix(), device(up).matrix(), act);
        project_unsettled(act, x.rows, device(down).matrix(), out);
    }

    void* router_input_of(const Mat& h) {
        return context_->scratch(Scratch::router_input,
                                 static_cast<std::size_t>(h.rows * h.cols) * size_of(element_));
    }

    void route_now(const Mat& h, const RouterWeights& weights, const Routing& out) {
        const DeviceMatrix& proj = device(*weights.proj).matrix();
        void* a = router_input_of(h);
        if (routed_h_ != h.data) {
            router_input(*context_, element_, h.data, device(*weights.scale).vector(), weights.input_scale,
                         h.rows, h.cols, weights.eps, a);
        }
        routed_h_ = nullptr;
        const bool units = parts_fit(element_, proj, false);
        const std::int64_t parts = units ? std::clamp<std::int64_t>(h.cols / 256, 1, 16) : 1;
        float* sums = context_->scratch<float>(Scratch::router_logits, parts * h.rows * proj.outs);
        if (units) {
            multiply_parts(*context_, a, h.rows, proj, false, parts, sums);
        } else {
            multiply_any(*context_, element_, a, h.rows, proj, false, {}, Element::f32, sums);
        }
        const Places places = places_for(h.rows * out.ids.cols, proj.outs);
        if (places.offsets == nullptr) return;
        auto* ids = static_cast<std::int32_t*>(out.ids.data);
        choose_experts(*context_, element_, sums, parts, device(*weights.per_expert_scale).vector(), h.rows,
                       proj.outs, out.ids.cols, ids, static_cast<float*>(out.weights.data),
                       static_cast<float*>(out.probabilities.data), places);
        ordered_ids_ = ids;
    }

    // Null after a failure.
    Places places_for(std::int64_t pairs, std::int64_t experts) {
        Places places;
        auto* numbers = context_->scratch<std::int32_t>(Scratch::places, 2 * (experts + 1) + 1 + 2 * pairs);
        std::int32_t* counters = facts();
        if (numbers == nullptr || counters == nullptr) return places;
        places.offsets = numbers;
        places.ready = places.offsets + experts + 1;
        places.place = places.ready + experts + 2;
        places.row_at = places.place + pairs;
        places.facts = counters;
        places.tickets = counters + 2;
        return places;
    }

    [[nodiscard]] bool experts_on_hopper(const Mat& x, const DeviceMatrix& gate_up,
                                         const DeviceMatrix& down) const {
        return on_hopper(x.data, gate_up) && on_hopper(x.data, down) &&
               sm90_experts_fit(gate_up.groups, x.cols, down.ins);
    }

    // As experts_unsettled, of packed weights.
    void packed_experts_unsettled(const Mat& x, const Routing& routing, const Weight& gate_up,
                                  const Weight& down, const Mat& out, const PackedDense& dense) {
        const PackedMatrix &first = device(gate_up).packed(), &second = device(down).packed();
        if (first.packing != second.packing || !sm90_experts_fit(first.groups, x.cols, second.ins))
            mixed_packings();
        const std::int64_t k = routing.ids.cols, pairs = x.rows * k;
        const auto* ids = static_cast<const std::int32_t*>(routing.ids.data);
        const Places places = places_for(pairs, first.groups);
        if (places.offsets == nullptr || context_->failed()) return;
        if (ordered_ids_ != ids) sort_pairs(*context_, ids, x.rows, k, first.groups, places);
        ordered_ids_ = nullptr;
        void* act = context_->scratch(Scratch::expert_hidden,
                                      static_cast<std::size_t>(pairs * second.ins) * size_of(element_));
        void* y = context_->scratch(Scratch::expert_rows,
                                    static_cast<std::size_t>(pairs * x.cols) * size_of(element_));
        sm90_packed_experts(*context_, x.data, first, second, places, act, y, dense);
        unsettled_experts_ = {out.data, y, places.place, static_cast<const float*>(routing.weights.data),
                              x.rows,   k, x.cols};
    }

    void experts_unsettled(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                           const Mat& out, const DenseBeside& dense) {
        if (device(gate_up).is_packed() || device(down).is_packed()) {
            packed_experts_unsettled(x, routing, gate_up, down, out, {});
            return;
        }
        const DeviceMatrix &first = device(gate_up).matrix(), &second = device(down).matrix();
        const std::int64_t k = routing.ids.cols, pairs = x.rows * k, width = second.ins, count = first.groups;
        const auto* ids = static_cast<const std::int32_t*>(routing.ids.data);
        const Places places = places_for(pairs, count);
        if (places.offsets == nullptr) return;
        if (ordered_ids_ != ids) sort_pairs(*context_, ids, x.rows, k, count, places);
        ordered_ids_ = nullptr;
        const auto matrix = [&](Scratch which, std::int64_t cols) {
            return context_->scratch(which, static_cast<std::size_t>(pairs * cols) * size_of(element_));
        };
        void* act = matrix(Scratch::expert_hidden, width);
        void* y = matrix(Scratch::expert_rows, x.cols);
        if (experts_on_hopper(x, first, second)) {
            sm90_experts(*context_, x.data, first, second, places, act, y, dense);
        } else {
            const Groups groups{places.offsets, count};
            void* sorted = matrix(Scratch::sorted_rows, x.cols);
            void* gu = matrix(Scratch::gate, 2 * width);
            gather_rows(*context_, element_, x.data, places.row_at, pairs, x.cols, sorted);
            // An expert has at most one row of each token.
            multiply(*context_, element_, sorted, x.rows, first, groups, element_, gu);
            gelu_times(*context_, element_, gu,
                       static_cast<std::byte*>(gu) + static_cast<std::size_t>(width) * size_of(element_),
                       pairs, width, 2 * width, act);
            multiply(*context_, element_, act, x.rows, second, groups, element_, y);
        }
        unsettled_experts_ = {out.data, y, places.place, static_cast<const float*>(routing.weights.data),
                              x.rows,   k, x.cols};
    }

    // --- facts
    std::int32_t* facts() {
        if (facts_ == nullptr) {
            auto memory = DeviceStorage::make(*context_, 3 * sizeof(std::int32_t));
            if (!memory) {
                context_->fail(memory.error().kind, memory.error().message);
                return nullptr;
            }
            facts_ = std::move(memory).value();
            clear_facts();
            fill(*context_, static_cast<std::int32_t*>(facts_->data()) + 2, 1, 0);
        }
        return static_cast<std::int32_t*>(facts_->data());
    }
    void clear_facts() {
        auto* at = static_cast<std::int32_t*>(facts_->data());
        fill(*context_, at, 1, std::numeric_limits<std::int32_t>::max());
        fill(*context_, at + 1, 1, 0);
    }

    // --- recorded passes
    static constexpr std::size_t most_recordings = 64;
    struct DestroyGraph {
        void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
    };
    struct Recording {
        std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph> graph;
        std::uint64_t generation = ~std::uint64_t{0};  // of working memory when the key was last seen
    };
    // Records the operations and runs the record. False: nothing ran, because the device would not record
    // them.
    bool record(const std::function<void()>& operations, Recording& recording) {
        cudaStream_t stream = context_->stream();
        if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
            cudaGetLastError();
            return false;
        }
        context_->nothing_early();
        operations();
        settle();
        context_->nothing_early();
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        const bool captured = cudaStreamEndCapture(stream, &graph) == cudaSuccess && !context_->failed() &&
                              cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
        if (graph != nullptr) cudaGraphDestroy(graph);
        if (!captured) {
            cudaGetLastError();
            (void)context_->take_failure();
            return false;
        }
        recording.graph.reset(executable);
        recording.generation = context_->generation();
        context_->check(cudaGraphLaunch(executable, stream), "running a recorded pass");
        return true;
    }

    static Element cache_element(std::span<const AttentionSegment> segments) {
        return segments[0].cache.type == Dtype::bf16 ? Element::bf16 : Element::f32;
    }
    [[nodiscard]] std::int32_t* marks() { return static_cast<std::int32_t*>(marks_->data()); }

    std::unique_ptr<Context> context_;
    Element element_;
    Inputs inputs_;
    std::int64_t rows_ = 0;
    std::unique_ptr<DeviceStorage> marks_;
    PinnedMemory host_marks_;
    std::unique_ptr<DeviceStorage> facts_;  // two since they were last taken, and a ticket counter
    UnsettledSum unsettled_sum_;
    UnsettledExperts unsettled_experts_;
    const void* ordered_ids_ = nullptr;  // the choices whose order stands in Scratch::places
    const void* routed_h_ = nullptr;     // the h whose router input stands in Scratch::router_input
    std::map<std::vector<std::uint64_t>, Recording> recordings_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(Precision precision, const CudaOptions& options) {
    DGEMMA_TRY(auto context, cuda::Context::open(options));
    const cuda::Element element = precision == Precision::f32 ? cuda::Element::f32 : cuda::Element::bf16;
    return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(std::move(context), element));
}

Result<std::unique_ptr<Weight>> make_random_cuda_weight(Backend& backend, const Shape& shape, Dtype type,
                                                        float scale, float mean, std::uint64_t seed) {
    cuda::Context& context = static_cast<cuda::CudaBackend&>(backend).context();
    DGEMMA_TRY(auto weight, cuda::DeviceWeight::make(context, shape, type));
    cuda::fill_random(context, weight->data(), weight->matrix().type, elements_of(shape), scale, mean, seed);
    DGEMMA_CHECK(context.take_failure());
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> make_random_cuda_branch(Backend& backend, const Shape& shape,
                                                        Encoding encoding, float deviation,
                                                        std::uint64_t seed) {
    auto& own = static_cast<cuda::CudaBackend&>(backend);
    if (!own.packs() || !cuda::DeviceWeight::packable(shape, encoding)) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("a weight of shape {} stored as {} is not computed with as it is on this GPU",
                        to_string(shape), name_of(encoding))};
    }
    DGEMMA_TRY(auto weight, cuda::DeviceWeight::make_random(own.context(), shape, cuda::packing_of(encoding),
                                                            deviation, seed));
    return std::unique_ptr<Weight>(std::move(weight));
}

void begin_cuda_profile(Backend& backend) {
    static_cast<cuda::CudaBackend&>(backend).context().begin_profile();
}

std::vector<CudaStageTime> end_cuda_profile(Backend& backend) {
    return static_cast<cuda::CudaBackend&>(backend).context().end_profile();
}

double cuda_milliseconds(Backend& backend, int repeat, void (*f)(void*), void* argument) {
    cuda::Context& context = static_cast<cuda::CudaBackend&>(backend).context();
    context.enter();
    cudaEvent_t begin = nullptr, end = nullptr;
    context.check(cudaEventCreate(&begin), "measuring");
    context.check(cudaEventCreate(&end), "measuring");
    context.check(cudaEventRecord(begin, context.stream()), "measuring");
    for (int i = 0; i < repeat; ++i) f(argument);
    context.check(cudaEventRecord(end, context.stream()), "measuring");
    context.synchronize("measuring");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return milliseconds;
}

}  // namespace dgemma::backend
