// The arithmetic of DiffusionGemma as about twenty coarse operations, and who implements them.
//
// Notation: n rows (tokens of one or several sequences), H hidden, V vocabulary, D head size, E experts, k
// experts per token. A backend knows no layer numbers, no tokens' meaning and no sampling. Every operation
// reads its inputs, writes its output completely, and gives a row a result that depends on that row (and, in
// attention, on its keys) alone: never on how many rows share the call or on the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/row_stats.h"
#include "base/tensor.h"
#include "base/weight_view.h"

namespace dgemma::backend {

// Where results are rounded (contract/model.md 3). f32: nowhere. bf16: at every rounding point of the
// contract's "HF-bf16 profile"; the sums themselves stay f32 or better. mixed: nowhere but in the operands of
// the large products, which become bf16 (or 8 bits, where the weight has no more) if the machine multiplies
// those faster; norms, router, softmax and head statistics stay f32.
enum class Precision : std::uint8_t { f32, bf16, mixed };

// A matrix of activations [rows, cols], row-major and dense, in the backend's own memory and element type.
struct Mat {
    void* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
};

// Memory of a backend; freed with the owner.
class Storage {
  public:
    virtual ~Storage() = default;
    [[nodiscard]] virtual void* data() = 0;
    [[nodiscard]] virtual std::size_t bytes() const = 0;
};

// A weight in the form the backend wants it: a matrix [out, in], a bank [experts, out, in], or a vector [n].
class Weight {
  public:
    virtual ~Weight() = default;
    [[nodiscard]] const Shape& shape() const { return shape_; }

  protected:
    explicit Weight(Shape shape) : shape_(std::move(shape)) {}

  private:
    Shape shape_;
};

// Keys and values of one layer of one sequence. Position p lives in slot p mod capacity; a page holds
// `page_tokens` consecutive slots as [kv_heads, page_tokens, D] in the cache's element type. A full layer's
// capacity is never reached (it grows by pages); a sliding layer's is a ring.
struct KvPages {
    std::span<void* const> keys;
    std::span<void* const> values;
    std::int64_t capacity = 0;  // slots; a multiple of page_tokens
    Dtype type = Dtype::f32;    // f32, bf16 or f16
};
inline constexpr std::int64_t page_tokens = 64;

// Rows of one sequence within a call.
struct AttentionSegment {
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    KvPages cache;
    std::int64_t canvas_position =
        -1;  // keys from here on are the segment's own k, v rows; -1: all keys are cached
};

struct AttentionArgs {
    Mat q;                                       // [n, heads * D], normed and rotated
    Mat k, v;                                    // [n, kv_heads * D]; read only by segments with a canvas
    std::span<const AttentionSegment> segments;  // disjoint, covering the rows
    // Row i sees the absolute positions [key_begin[i], key_end[i]): every mask of contract/model.md 5.3, 5.4
    // and 6.3 is such an interval. [n]
    std::span<const std::int32_t> key_begin, key_end;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    Mat out;  // [n, heads * D]
};

// Weights and biases of the router (contract/model.md 3, "Router").
struct RouterWeights {
    const Weight* scale = nullptr;             // [H]
    const Weight* proj = nullptr;              // [E, H]
    const Weight* per_expert_scale = nullptr;  // [E]
    float input_scale = 0;                     // f32(H^-0.5)
    float eps = 0;
};

// Who goes where: for row i the k experts in ascending id, each with the weight of its output.
struct Routing {
    Mat ids;            // [n, k] of int32
    Mat weights;        // [n, k] of f32
    Mat probabilities;  // [n, E] of f32, or no data where nobody asks
};

// Queries, keys and values of a layer from its normed input x [n, H]: projected, normed by head, queries and
// keys rotated. v_proj null: a value is the raw key projection, before its norm and rotation.
struct AttentionInputs {
    Mat x;
    const Weight *q_proj = nullptr, *k_proj = nullptr, *v_proj = nullptr;
    const Weight *q_norm = nullptr, *k_norm = nullptr;  // [D]
    const Weight* frequencies = nullptr;                // [D/2]
    std::span<const std::int32_t> positions;            // [n]
    int head_dim = 0;
    float eps = 0;
    Mat q, k, v;  // out
};

// h = rb(h + norm(branch; norm)), and what the two branches read: dense = norm(h; dense_norm), experts =
// norm(h; experts_norm). branch may be overwritten.
struct AfterAttention {
    Mat branch;  // o_proj's output [n, H]
    const Weight *norm = nullptr, *dense_norm = nullptr, *experts_norm = nullptr;
    float eps = 0;
    Mat h, dense, experts;                  // [n, H]; h in and out
    const RouterWeights* router = nullptr;  // of the same layer: its input may be prepared with the rest
};

// The dense MLP and the experts of a layer, which depend on each other in nothing.
struct Branches {
    Mat dense_in;
    const Weight *gate = nullptr, *up = nullptr, *down = nullptr;
    Mat dense;  // out
    Mat h;      // what the router reads
    RouterWeights router;
    Routing routing;  // out
    Mat experts_in;
    const Weight *gate_up = nullptr, *expert_down = nullptr;
    Mat experts;  // out
};

// The last norms of a layer: x' = rb(rb(h + norm(rb(norm(dense; dense_norm) + norm(sparse; sparse_norm));
// norm)) * scalar)
struct LayerEnd {
    Mat residual, dense, sparse;  // h and the two branches, [n, H]
    const Weight* dense_norm = nullptr;
    const Weight* sparse_norm = nullptr;
    const Weight* norm = nullptr;
    const Weight* scalar = nullptr;  // [1]
    float eps = 0;
    Mat out;  // [n, H]; may be the residual
};

// The logits of one canvas between two passes: zt = z / T of every row, and what the sampler asks of it.
class Logits : public LogitRows {
  public:
    [[nodiscard]] virtual std::int64_t rows() const = 0;
};

struct HeadArgs {
    Mat x;                          // [n, H], after the final norm
    const Weight* table = nullptr;  // [V, H], the tied embedding
    float softcap = 0;
    // Consecutive runs of rows, one per canvas: its temperature and where its logits go.
    struct Canvas {
        std::int64_t first_row = 0, rows = 0;
        float temperature = 1;
        Logits* logits = nullptr;
    };
    std::span<const Canvas> canvases;
};

// What the operations of one pass are about to be given. A backend with memory of its own copies it in
// begin_pass, in one transfer: the numbers and segments handed to operations are then pieces of these spans,
// which stay where they are until end_pass.
struct PassInputs {
    std::int64_t rows = 0;
    std::span<const std::int32_t> numbers;       // token ids, positions, ranges of keys
    std::span<const AttentionSegment> segments;  // of every layer
    std::span<const HeadArgs::Canvas> canvases;  // of the head; none in the encoder
};

// The kinds of multiply-add a backend does: f32, pairs of bf16, quads of bytes.
enum class Arithmetic : std::uint8_t { f32, bf16, bytes };
inline constexpr std::size_t kArithmetics = 3;
std::string_view name_of(Arithmetic kind);

// What was done since the facts were last taken; zeros where the backend does not count.
struct PassFacts {
    std::array<double, kArithmetics> multiply_adds{};
    std::int64_t fewest_experts = 0;    // that had rows, in the layer where they were fewest
    std::int64_t most_expert_rows = 0;  // of one expert in one layer
    std::int64_t soft_rows = 0;         // rows of soft embeddings, and the vocabulary entries they took in
    std::int64_t soft_entries = 0;
};

// The parts of a pass that are timed apart.
enum class Stage : std::uint8_t { self_conditioning, attention, dense, experts, head };
inline constexpr std::size_t kStages = 5;
std::string_view name_of(Stage stage);  // "self_conditioning", ...

class Backend {
  public:
    virtual ~Backend() = default;
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual Precision precision() const = 0;
    [[nodiscard]] virtual std::size_t activation_bytes() const = 0;  // of one element of a Mat
    // Rows [first, first + count) of activations.
    [[nodiscard]] Mat rows_of(const Mat& m, std::int64_t first, std::int64_t count) const {
        return {
            static_cast<std::byte*>(m.data) + static_cast<std::size_t>(first * m.cols) * activation_bytes(),
            count, m.cols};
    }

    // --- memory. Errors: io, when there is none left (with the number of bytes).
    virtual Result<std::unique_ptr<Storage>> allocate(std::size_t bytes) = 0;
    // The view behind a matrix or bank must outlive the weight: a backend may read it in place. A vector is
    // copied. Floating types.
    virtual Result<std::unique_ptr<Weight>> prepare(const Tensor& host) = 0;
    // The same for a weight in any encoding. Errors: unsupported, naming an encoding the backend has no
    // kernel for.
    virtual Result<std::unique_ptr<Weight>> prepare_encoded(const WeightView& host);
    // The same for a weight of the dense MLP or of the experts, which only gated_mlp, experts and branches
    // read: a backend may keep it in a form that suits these alone.
    virtual Result<std::unique_ptr<Weight>> prepare_branch(const WeightView& host) {
        return prepare_encoded(host);
    }
    // The same for a weight of attention's projections, which only attention_inputs and project read.
    virtual Result<std::unique_ptr<Weight>> prepare_projection(const WeightView& host) {
        return prepare_encoded(host);
    }
    virtual Result<std::unique_ptr<Logits>> make_logits(std::int64_t rows, std::int64_t vocab) = 0;
    // zt as given [rows, V]: scripted logits and recorded ones.
    virtual void set_logits(Logits& logits, std::span<const float> zt) = 0;
    virtual void download(const Mat& from, std::span<float> to) = 0;
    virtual void upload(std::span<const float> from, const Mat& to) = 0;
    // Bytes as they lie in the backend's memory: pages of a cache.
    virtual void read_memory(const void* from, std::span<std::byte> to) = 0;
    virtual void fill_zero(const Mat& to) = 0;
    virtual void copy(const Mat& from, const Mat& to) = 0;  // of equal shape

    // --- the frame of a pass, and its beginning
    // Operations may run outside a pass too, as tests do; only `watch` needs one. Errors: io (memory).
    virtual Status begin_pass(const PassInputs& inputs) = 0;
    // Waits for the pass. For each row the first stage at which it was not finite (see `watch`), -1 for a
    // sound row; valid until the next begin_pass. Errors: io (a device that ran out of memory or failed).
    virtual Result<std::span<const std::int32_t>> end_pass() = 0;
    // out[i] = rb(table[ids[i]] * scale). ids are checked by the caller.
    virtual void embed(std::span<const std::int32_t> ids, const Weight& table, float scale,
                       const Mat& out) = 0;
    // out = rb(rb(softmax(rb(zt)) table) * scale), the expected embedding of the previous pass
    // (contract 6.1): the rows of all of `previous`, one after another.
    virtual void soft_embed(std::span<Logits* const> previous, const Weight& table, float scale,
                            const Mat& out) = 0;
    // From now on soft embeddings leave out the entries whose probability is below e^-nats of the row's
    // largest; infinity, as at the beginning: none. An approximation: rows that are not peaked enough to gain
    // are computed in full. -> whether the backend can.
    virtual bool set_soft_cutoff(float nats) { return nats == std::numeric_limits<float>::infinity(); }
    // out = norm(rb(a + b)), without a weight: the input of the decoder's first layer. b without data counts
    // as zero.
    virtual void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) = 0;

    // Runs the operations of a pass, between its beginning and its end. A backend may record what they do
    // and, when a pass of the same key comes again, repeat the record instead of calling them: everything
    // that differs between such passes was given to begin_pass. key: all else that the operations depend on.
    virtual void run_pass(std::span<const std::uint64_t> key, const std::function<void()>& operations);
    // --- time. Everything from here to the next call, or to the end of the pass, belongs to `stage`.
    virtual void begin_stage(Stage) {}
    // Whether a pass is recorded when it comes again: the first ones of a shape are slower then, and stages
    // are timed only while time_stages asks for it, since that makes every pass slower.
    [[nodiscard]] virtual bool records_passes() const { return false; }
    virtual void time_stages(bool) {}
    // Milliseconds of each stage since the last call; zeros where the backend does not measure.
    virtual std::array<double, kStages> take_stage_times() { return {}; }
    virtual PassFacts take_facts() { return {}; }
    // Multiply-adds per second that this machine reaches in registers, by kind; 0 for what it has no
    // instruction for. Takes a fraction of a second.
    virtual std::array<double, kArithmetics> measure_peaks() { return {}; }

    // --- norms and projections
    // out = rb(x * mean(x^2 + eps)^-1/2 * weight); weight null: the last product is left out. out may be x.
    virtual void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) = 0;
    // out = rb(residual + norm(x; weight)). out may be either.
    virtual void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                               const Mat& out) = 0;
    // out [n, out] = rb(x [n, in] weight^T)
    virtual void project(const Mat& x, const Weight& weight, const Mat& out) = 0;
    // out = down(rb(rb(gelu(gate x)) * up x))
    virtual void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                           const Mat& out) = 0;

    // --- attention
    // In place, per head of D columns: norm over the head (weight null: without), then, unless `frequencies`
    // is null, rotate by position (split halves: component d turns with d + D/2). frequencies: f32 [D/2];
    // positions: [n].
    virtual void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps,
                            const Weight* frequencies, std::span<const std::int32_t> positions) = 0;
    // Writes every segment's rows of k and v to the slots of their positions in the segment's cache.
    // positions: [n].
    virtual void store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                          std::span<const std::int32_t> positions, int kv_heads) = 0;
    // A pass of twice as many rows or more had better do attention, from the projections before it to the one
    // after it, for about so many at a time: what an operation writes is then still near for the next.
    [[nodiscard]] virtual std::int64_t attention_rows() const {
        return std::numeric_limits<std::int64_t>::max();
    }
    // Of the rows of `segments`, softmax over a row's keys of q k^T (not divided by sqrt(D)), times v; other
    // rows of `out` may hold anything afterwards. Query head j reads kv head j * kv_heads / heads.
    virtual void attention(const AttentionArgs& args) = 0;

    // --- experts
    virtual void route(const Mat& h, const RouterWeights& weights, const Routing& out) = 0;
    // out[i] = sum over row i's experts e, in ascending id, of weight * down_e(rb(rb(gelu(gate_e x)) * up_e
    // x)). gate_up: [E, 2 * width, H], the gate's rows first; down: [E, H, width].
    virtual void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                         const Mat& out) = 0;
    virtual void end_layer(const LayerEnd& args) = 0;

    // --- several operations in one, for backends that save by it. What they do is said by the ones they
    // stand for, in backend.cpp.
    virtual void attention_inputs(const AttentionInputs& args);
    virtual void after_attention(const AfterAttention& args);
    virtual void branches(const Branches& args);
    // end_layer, watch, and, unless next_norm is null, next = norm(out; next_norm).
    virtual void finish_layer(const LayerEnd& args, std::int32_t stage, const Weight* next_norm,
                              const Mat& next);

    // --- the end of a pass
    // z = softcap * tanh(rb(x table^T) / softcap), zt = z / T (a true division), and the statistics of every
    // row.
    virtual void head(const HeadArgs& args) = 0;

    // --- the watch for NaN and infinity: stage after stage, each row of x that is not finite for the first
    // time in this pass is marked with `stage`.
    virtual void watch(const Mat& x, std::int32_t stage) = 0;
};

}  // namespace dgemma::backend
