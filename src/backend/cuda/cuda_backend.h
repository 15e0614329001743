// The backend on the device: each operation of backend.h finds its inputs there and launches kernels.
// Defined in backend.cpp (memory, the frame of a pass), operations.cpp and branches.cpp (the dense MLP and
// the experts).
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/recordings.h"
#include "backend/cuda/stage_clock.h"

namespace dgemma::backend::cuda {

inline const DeviceWeight& device(const Weight& w) { return static_cast<const DeviceWeight&>(w); }
inline const float* vector_or_null(const Weight* w) { return w == nullptr ? nullptr : device(*w).vector(); }

class CudaBackend final : public Backend {
  public:
    CudaBackend(std::unique_ptr<Context> context, Element element, bool e4m3_activations)
        : context_(std::move(context)),
          element_(element),
          e4m3_activations_(e4m3_activations && element == Element::bf16 && context_->hopper()),
          inputs_(*context_),
          recordings_(*context_),
          clock_(*context_) {}

    [[nodiscard]] std::string_view name() const override { return "cuda"; }
    [[nodiscard]] Precision precision() const override {
        return element_ == Element::bf16 ? Precision::bf16 : Precision::f32;
    }
    [[nodiscard]] std::size_t activation_bytes() const override { return size_of(element_); }
    [[nodiscard]] Context& context() { return *context_; }

    // --- memory
    Result<std::unique_ptr<Storage>> allocate(std::size_t bytes) override;
    Result<std::unique_ptr<Weight>> prepare(const Tensor& host) override;

    // Encoded weights become numbers, except where a kernel reads them as they are.
    Result<std::unique_ptr<Weight>> prepare_encoded(const WeightView& host) override;
    Result<std::unique_ptr<Weight>> prepare_branch(const WeightView& host) override;
    Result<std::unique_ptr<Weight>> prepare_projection(const WeightView& host) override;
    // Whether weights in E4M3 are multiplied as such.
    [[nodiscard]] bool multiplies_e4m3() const { return e4m3_activations_; }
    // Whether weights of the dense MLP and the experts stay in 4 and 8 bits.
    [[nodiscard]] bool packs() const { return context_->hopper() && element_ == Element::bf16; }

    Result<std::unique_ptr<Logits>> make_logits(std::int64_t rows, std::int64_t vocab) override;
    void set_logits(Logits& logits, std::span<const float> zt) override;
    void download(const Mat& from, std::span<float> to) override;
    void upload(std::span<const float> from, const Mat& to) override;
    void read_memory(const void* from, std::span<std::byte> to) override;
    void fill_zero(const Mat& to) override;
    void copy(const Mat& from, const Mat& to) override;

    // --- the frame of a pass
    Status begin_pass(const PassInputs& inputs) override;
    Result<std::span<const std::int32_t>> end_pass() override;
    void run_pass(std::span<const std::uint64_t> key, const std::function<void()>& operations) override;
    [[nodiscard]] bool records_passes() const override { return true; }
    // Of the 26B model, 34 MB of queries, keys and values; the second-level cache of an H200 has 50.
    [[nodiscard]] std::int64_t attention_rows() const override { return 2048; }
    void time_stages(bool on) override { clock_.set(on); }
    void begin_stage(Stage stage) override { clock_.begin(stage); }
    std::array<double, kStages> take_stage_times() override { return clock_.take(); }
    void embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) override;
    void soft_embed(std::span<Logits* const> previous, const Weight& table, float scale,
                    const Mat& out) override;
    void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) override;

    // --- norms and projections
    void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) override;
    void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                       const Mat& out) override;
    void project(const Mat& x, const Weight& weight, const Mat& out) override;
    void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                   const Mat& out) override;

    // --- attention
    void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps, const Weight* frequencies,
                    std::span<const std::int32_t> positions) override;
    void attention_inputs(const AttentionInputs& a) override;
    void after_attention(const AfterAttention& a) override;
    void store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                  std::span<const std::int32_t> positions, int kv_heads) override;
    void attention(const AttentionArgs& args) override;

    // --- experts
    void route(const Mat& h, const RouterWeights& weights, const Routing& out) override;
    void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 const Mat& out) override;
    void branches(const Branches& b) override;
    void finish_layer(const LayerEnd& a, std::int32_t stage, const Weight* next_norm,
                      const Mat& next) override;
    void end_layer(const LayerEnd& args) override;

    // --- the end of a pass
    void head(const HeadArgs& args) override;
    void watch(const Mat& x, std::int32_t stage) override;
    PassFacts take_facts() override;

  private:
    // The frame of every operation: what an earlier one left to a later one is done now, unless this is the
    // later one.
    enum Unsettled : std::uint8_t { settle_first, keep };
    class Operation {
      public:
        Operation(CudaBackend& backend, const char* stage, Unsettled unsettled = settle_first)
            : settled_(unsettled == settle_first ? &backend.settle() : &backend),
              stage_(backend.context(), stage) {
            backend.forget_quantised();
        }

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
    // --- activations that a kernel left in E4M3, too, for the operation that comes next
    struct Quantised {
        const void* of = nullptr;  // the data of the matrix in bf16
        E4m3Rows rows;
    };
    // Room for the E4M3 of [rows, cols]. Null codes after a failure.
    E4m3Target e4m3_room(Scratch which, std::int64_t rows, std::int64_t cols);
    // x in E4M3: what is `known`, if that is x, else made now.
    E4m3Rows e4m3_of(const Mat& x, const Quantised& known, Scratch which);
    // Room for a hidden layer of [rows, width].
    E4m3Target e4m3_hidden_room(Scratch which, std::int64_t rows, std::int64_t width);
    E4m3Dense e4m3_dense(const Mat& x, const Quantised& known, const Weight& gate, const Weight& up,
                         const Weight& down, const Mat& out);
    void e4m3_experts_unsettled(const Mat& x, const Quantised& known, const Routing& routing,
                                const Weight& gate_up, const Weight& down, const Mat& out,
                                const E4m3Dense& dense);

    // Before anything else writes: what they stand for may change.
    void forget_quantised() {
        quantised_next_ = quantised_dense_ = quantised_experts_ = quantised_attended_ = {};
    }
    void settle_sum();
    CudaBackend& settle();
    void forget_unsettled() {
        unsettled_sum_ = {};
        unsettled_experts_ = {};
    }
    Addends take_addends(const Mat& m);
    void project_unsettled(const void* x, std::int64_t rows, const DeviceMatrix& weight, const Mat& out);

    // The dense MLP of packed weights; its three are packed alike or not at all.
    PackedDense packed_dense(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                             const Mat& out);
    void mixed_packings();
    void gated_mlp_unsettled(const Mat& x, const Quantised& known, const Weight& gate, const Weight& up,
                             const Weight& down, const Mat& out);
    void* router_input_of(const Mat& h);
    void route_now(const Mat& h, const RouterWeights& weights, const Routing& out);

    // Null after a failure.
    Places places_for(std::int64_t pairs, std::int64_t experts);
    // Where the pairs of x's rows and their choices stand, ordered now unless the choice did so; no offsets
    // after a failure.
    Places ordered_places(const Mat& x, const Routing& routing, std::int64_t experts);
    // [pairs, cols]
    void* pair_rows(Scratch which, const Places& places, std::int64_t cols) {
        return context_->scratch(which, static_cast<std::size_t>(places.pairs * cols) * size_of(element_));
    }
    // The experts' rows y [pairs, x.cols], whose sums are to become `out`.
    void leave_unsettled(const Mat& x, const Routing& routing, const Places& places, const void* y,
                         const Mat& out);
    [[nodiscard]] bool experts_on_hopper(const Mat& x, const DeviceMatrix& gate_up,
                                         const DeviceMatrix& down) const {
        return on_hopper(x.data, gate_up) && on_hopper(x.data, down) &&
               sm90_experts_fit(gate_up.groups, x.cols, down.ins);
    }

    // As experts_unsettled, of packed weights.
    void packed_experts_unsettled(const Mat& x, const Routing& routing, const Weight& gate_up,
                                  const Weight& down, const Mat& out, const PackedDense& dense);
    void experts_unsettled(const Mat& x, const Quantised& known, const Routing& routing,
                           const Weight& gate_up, const Weight& down, const Mat& out,
                           const DenseBeside& dense);

    // --- facts: two since they were last taken, and what kernels count by and leave as zeros
    static constexpr int tickets_at = 2, dense_ready_at = 3, masks_at = 4;
    std::int32_t* facts();
    void clear_facts();
    static Element cache_element(std::span<const AttentionSegment> segments) {
        return segments[0].cache.type == Dtype::bf16 ? Element::bf16 : Element::f32;
    }
    [[nodiscard]] std::int32_t* marks() { return static_cast<std::int32_t*>(marks_->data()); }

    std::unique_ptr<Context> context_;
    Element element_;
    bool e4m3_activations_;
    Inputs inputs_;
    std::int64_t rows_ = 0;
    std::unique_ptr<DeviceStorage> marks_;
    PinnedMemory host_marks_;
    std::unique_ptr<DeviceStorage> facts_;
    UnsettledSum unsettled_sum_;
    UnsettledExperts unsettled_experts_;
    const void* ordered_ids_ = nullptr;  // the choices whose order stands in Scratch::places
    // Number of the router's kernel, where the dense MLP may begin beside it; 0 when its choice was used.
    std::uint64_t router_kernel_ = 0;
    const void* routed_h_ = nullptr;  // the h whose router input stands in Scratch::router_input
    // Of the operation before, if that made any: a layer's next input, its two branches' inputs, attention's
    // results.
    Quantised quantised_next_, quantised_dense_, quantised_experts_, quantised_attended_;
    Recordings recordings_;
    StageClock clock_;
};

}  // namespace dgemma::backend::cuda
