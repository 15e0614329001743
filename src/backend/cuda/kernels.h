// The launches behind the operations. Every function puts its work on the context's stream and returns at
// once; what goes wrong is kept in the context. Matrices are row-major and dense; their element type is said
// beside them. A row's result depends on that row alone, as backend.h demands: sums run in an order that the
// shape of the weight fixes.
#pragma once

#include <cstdint>

#include <vector_types.h>

#include "backend/backend.h"
#include "backend/cuda/context.h"
#include "backend/cuda/e4m3_operands.h"
#include "backend/cuda/packing.h"

namespace dgemma::backend::cuda {

enum class Element : std::uint8_t { f32, bf16 };
inline std::size_t size_of(Element e) { return e == Element::f32 ? 4 : 2; }

// A weight as it lies on the device: [groups, outs, ins], one group unless it is a bank.
struct DeviceMatrix {
    const void* data = nullptr;
    Element type = Element::f32;
    std::int64_t groups = 1, outs = 0, ins = 0;
};

// --- e4m3_rows.cu: bf16 rows, as in norms.cu, with one scale each.
void quantise_rows(Context&, const void* x, std::int64_t rows, std::int64_t cols, const E4m3Target& to);

// --- norms.cu: rows of at most 8192 columns, a multiple of 8.
void rms_norm(Context&, Element, const void* x, const float* weight, std::int64_t rows, std::int64_t cols,
              float eps, void* out);
void add_then_norm(Context&, Element, const void* a, const void* b, std::int64_t rows, std::int64_t cols,
                   float eps, void* out);
void norm_then_add(Context&, Element, const void* x, const float* weight, const void* residual,
                   std::int64_t rows, std::int64_t cols, float eps, void* out);
// A matrix that may still be f32 sums over parts: rounded where it is whole, else rb(sum over parts).
struct Addends {
    const void* rounded = nullptr;
    const float* sums = nullptr;  // [parts, rows, cols]
    std::int64_t parts = 0;
};
// AfterAttention of backend.h, and the router's input from the same h unless router_in is null.
struct AfterAttentionPointers {
    Addends branch;
    const float *norm, *dense_norm, *experts_norm, *router_scale;
    float router_input_scale;
    void *h, *dense, *experts, *router_in;
    std::int32_t* counter;                  // [1]: set to zero; or null
    E4m3Target dense_codes, experts_codes;  // of `dense` and `experts`; bf16 only
};
void after_attention(Context&, Element, const AfterAttentionPointers&, std::int64_t rows, std::int64_t cols,
                     float eps);
// finish_layer of backend.h. The sparse branch is `sparse`, or, where that is null, the sum of rows of y: row
// r adds rb(y[place[r * k + i]] * weights[r * k + i]) for i = 0 .. k - 1, rounding after each.
struct FinishLayerPointers {
    Addends dense;
    const void *residual, *sparse, *y;
    const std::int32_t* place;
    const float* weights;
    std::int64_t k;
    const float *dense_norm, *sparse_norm, *norm, *scalar;
    void* out;
    std::int32_t stage;
    std::int32_t* marks;
    const float* next_norm;  // null: nothing
    void* next;
    E4m3Target next_codes;  // of `next`; bf16 only
};
void finish_layer(Context&, Element, const FinishLayerPointers&, std::int64_t rows, std::int64_t cols,
                  float eps);
struct LayerEndPointers {
    const void *residual, *dense, *sparse;
    const float *dense_norm, *sparse_norm, *norm, *scalar;
    void* out;
};
void end_layer(Context&, Element, const LayerEndPointers&, std::int64_t rows, std::int64_t cols, float eps);
// marks[r] = stage where row r holds a NaN or an infinity and marks[r] was negative.
void watch(Context&, Element, const void* x, std::int64_t rows, std::int64_t cols, std::int32_t stage,
           std::int32_t* marks);
void fill(Context&, std::int32_t* to, std::int64_t count, std::int32_t value);

// --- embedding.cu
void embed(Context&, Element, const std::int32_t* ids, const DeviceMatrix& table, float scale,
           std::int64_t rows, void* out);
// x = rb(rb(x) * scale), in place from f32 sums: out [count].
void scale_rounded(Context&, Element, const float* sums, std::int64_t parts, std::int64_t count, float scale,
                   void* out);
void fill_random(Context&, void* to, Element, std::int64_t count, float scale, float mean,
                 std::uint64_t seed);

// --- heads.cu: per head of `head_dim` columns, a multiple of 16 up to 512.
struct HeadsPart {
    void* x = nullptr;  // [rows, heads * head_dim], in place
    int heads = 0;
    const float* weight = nullptr;       // [head_dim] or null
    const float* frequencies = nullptr;  // [head_dim / 2] or null
    void* plain = nullptr;               // where the heads go normed only, too; null: nowhere
};
void norm_heads(Context&, Element, const HeadsPart* parts, int count, std::int64_t rows, int head_dim,
                float eps, const std::int32_t* positions);

// A segment as kernels read it.
struct DeviceSegment {
    std::int32_t first_row, rows;
    std::int32_t canvas_position;  // -1: every key is cached
    std::int32_t ring_pages;       // capacity / page_tokens
    const void* const* keys;       // pages
    const void* const* values;
};
void store_kv(Context&, Element, Element cache, const void* k, const void* v, const DeviceSegment* segments,
              int count, const std::int32_t* positions, std::int64_t rows, int kv_heads, int head_dim);

// --- dispatch.cpp chooses among gemm_any.cu, gemm_mma.cu and sm90_gemm.cu.
struct Groups {
    const std::int32_t* offsets =
        nullptr;  // [groups + 1] on the device: whose rows are whose; null: one group
    std::int64_t count = 1;
};
// out = x [rows, ins] weight^T -> out [rows, outs] of type `out_type`.
void multiply(Context&, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& weight,
              const Groups& groups, Element out_type, void* out);
// out = rb(rb(gelu(x gate^T)) * x up^T)
void multiply_gated(Context&, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& gate,
                    const DeviceMatrix& up, void* out);
// sums [parts, rows, outs] in f32 of x [rows, ins] w, w [ins, outs] (`by_rows`) or w^T, w [outs, ins]: ins is
// cut into `parts` pieces of ceil(ins / parts / 64) * 64. bf16 only.
bool parts_fit(Element x_type, const DeviceMatrix& weight, bool by_rows);
void multiply_parts(Context&, const void* x, std::int64_t rows, const DeviceMatrix& weight, bool by_rows,
                    std::int64_t parts, float* sums);
inline std::int64_t part_of(std::int64_t ins, std::int64_t parts) {
    return (ins + 64 * parts - 1) / (64 * parts) * 64;
}
// Into how many parts the k of a [outs, ins] weight is cut so that 256 rows of it keep a large card busy. A
// property of the weight alone: the sums of a row must not depend on how many rows there are.
inline std::int64_t parts_for(std::int64_t outs, std::int64_t ins) {
    const std::int64_t by_tiles = 132 / (2 * ((outs + 127) / 128)), by_depth = ins / 256;
    const std::int64_t parts = by_tiles < by_depth ? by_tiles : by_depth;
    return parts < 1 ? 1 : parts > 8 ? 8 : parts;
}
// out = rb(sum over parts)
void add_parts(Context&, Element, const float* sums, std::int64_t parts, std::int64_t count, void* out);
// out[i] = rb(rb(gelu(gate[i])) * up[i]); gate and up are rows of `width` inside rows of `stride`.
void gelu_times(Context&, Element, const void* gate, const void* up, std::int64_t rows, std::int64_t width,
                std::int64_t stride, void* out);

void multiply_any(Context&, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& weight,
                  bool by_rows, const Groups&, Element out_type, void* out);
// bf16 x and weight. parts > 0: sums into `out` as multiply_parts; else out_type.
void multiply_mma(Context&, const void* x, std::int64_t rows, const DeviceMatrix& weight, bool by_rows,
                  const Groups&, std::int64_t parts, Element out_type, void* out);

// --- Hopper. These read weights before the kernel before them is over: after a kernel that writes weights,
// nothing_early() of the context is called.
bool hopper_kernels_compiled();
bool load_tensor_map_encoder();  // asks the driver; false: too old
bool sm90_fits(const void* x, const DeviceMatrix& weight);
// Up to three weights of one x, in one launch. Where a small product is cut along k and `sums` is not null,
// the parts are not added: *sums [parts, rows, outs] is then what there is, in Scratch::partials. -> the
// parts, or 1.
std::int64_t sm90_multiply(Context&, const void* x, std::int64_t rows, const DeviceMatrix* weights,
                           void* const* outs, int count, float** sums);
// The same with one wide weight, where every `block_rows` rows of x go to a buffer of their own, the next of
// `outs`: at most most_row_blocks of them. multiplies_blocks: whether it can.
constexpr std::size_t most_row_blocks = 16;
bool sm90_multiplies_blocks(const DeviceMatrix& weight, std::int64_t block_rows);
void sm90_multiply_blocks(Context&, const void* x, std::int64_t block_rows, const DeviceMatrix& weight,
                          std::span<void* const> outs);
// The same of E4M3, without parts. ins is a multiple of 16, outs of 8.
void sm90_e4m3_multiply(Context&, const E4m3Rows& x, std::int64_t rows, const E4m3Matrix* weights,
                        void* const* outs, int count);
void sm90_multiply_gated(Context&, const void* x, std::int64_t rows, const DeviceMatrix& gate,
                         const DeviceMatrix& up, void* out);
void sm90_multiply_parts(Context&, const void* x, std::int64_t rows, const DeviceMatrix& weight, bool by_rows,
                         std::int64_t parts, float* sums);

// --- route.cu
// a = rb(rb(norm(h) * scale) * input_scale)
void router_input(Context&, Element, const void* h, const float* scale, float input_scale, std::int64_t rows,
                  std::int64_t cols, float eps, void* out);
// Where the (row, choice) pairs stand when sorted by expert, rows in order within one.
struct Places {
    std::int64_t pairs = 0;           // of a row and a choice, in all
    std::int32_t* offsets = nullptr;  // [experts + 1]
    std::int32_t* place = nullptr;    // [rows * k]: place of a pair
    std::int32_t* row_at = nullptr;   // [rows * k]: row of a place
    std::int32_t* facts = nullptr;    // the fewest experts with rows and the most rows of one, so far
    std::int32_t* ready = nullptr;    // [2 + experts]: set to zero
    std::int32_t* tickets = nullptr;  // [1]: zero before and after
    // Where the dense MLP beside the experts counts what it has written, already zero when the router begins;
    // null: the first of `ready`. router: how many kernels there were with the router.
    std::int32_t* dense_ready = nullptr;
    std::uint64_t router = 0;
    std::uint32_t* masks = nullptr;  // [most_mask_words]: zero before and after
};
inline constexpr std::int64_t most_mask_words = 32768;  // rows of an expert as bits, 32 to a word
// The order alone, of choices made elsewhere.
void sort_pairs(Context&, const std::int32_t* ids, std::int64_t rows, std::int64_t k, std::int64_t experts,
                const Places& places);
// The same after a choice that left masks of `words` words; 0: none.
void order_pairs(Context&, const std::int32_t* ids, std::int64_t rows, std::int64_t k, std::int64_t experts,
                 std::int64_t words, const Places& places);
// Logits as f32 sums [parts, rows, experts] (rounded here), to the k largest of each row; then the order of
// the pairs.
void choose_experts(Context&, Element, const float* sums, std::int64_t parts, const float* per_expert_scale,
                    std::int64_t rows, std::int64_t experts, std::int64_t k, std::int32_t* ids,
                    float* weights, float* probabilities, const Places& places);

// The same from the router's input a [rows, hidden], in one kernel for Hopper. next_beside: the next kernel
// may begin once those before the router are over.
bool sm90_router_fits(const Context&, const DeviceMatrix& proj, std::int64_t k);
void sm90_router(Context&, const void* a, const DeviceMatrix& proj, const float* per_expert_scale,
                 std::int64_t rows, std::int64_t k, std::int32_t* ids, float* weights, float* probabilities,
                 bool next_beside, const Places& places);
// Whether it orders the pairs, too, so that no other kernel comes between it and the experts.
bool sm90_router_orders(std::int64_t rows, std::int64_t k, std::int64_t experts);

// --- experts.cu
void gather_rows(Context&, Element, const void* x, const std::int32_t* row_at, std::int64_t count,
                 std::int64_t cols, void* out);
// out[r] = sum over i of rb(y[place[r * k + i]] * weights[r * k + i]), rounded after each addition.
void combine_experts(Context&, Element, const void* y, const std::int32_t* place, const float* weights,
                     std::int64_t rows, std::int64_t k, std::int64_t cols, void* out);
bool sm90_experts_fit(std::int64_t experts, std::int64_t hidden, std::int64_t width);
// The dense MLP of the same layer, which may run in the same kernel: y [rows, hidden] from x [rows, hidden];
// act [rows, width] is scratch.
struct DenseBeside {
    const void* x = nullptr;
    std::int64_t rows = 0;  // 0: there is none
    DeviceMatrix gate, up, down;
    void *act = nullptr, *y = nullptr;
};
// The whole of the experts: y [pairs, hidden], sorted, from the rows of x; act [pairs, width] is scratch.
void sm90_experts(Context&, const void* x, const DeviceMatrix& gate_up, const DeviceMatrix& down,
                  const Places& places, void* act, void* y, const DenseBeside& dense);

// The same of packed weights. gate_up and down without a packing: the dense MLP alone; of places, `ready` is
// then all that counts.
struct PackedDense {
    const void* x = nullptr;
    std::int64_t rows = 0;  // 0: there is none
    PackedMatrix gate, up, down;
    void *act = nullptr, *y = nullptr;
};
bool sm90_packed_together(Packing experts, Packing dense);  // whether one launch can have both
void sm90_packed_experts(Context&, const void* x, const PackedMatrix& gate_up, const PackedMatrix& down,
                         const Places& places, void* act, void* y, const PackedDense& dense);

// The same of weights and activations in E4M3. Numbers of rows and columns of weights are multiples of 64.
// hidden: room for [pairs, width] codes and [pairs, hidden_scales(width)] scales; gate_up without codes: the
// dense MLP alone, as above.
void sm90_e4m3_experts(Context&, const E4m3Rows& x, const E4m3Matrix& gate_up, const E4m3Matrix& down,
                       const Places& places, const E4m3Target& hidden, void* y, const E4m3Dense& dense);

// --- unpack.cu: weights as they are stored, to what kernels read. An encoded weight on the device.
struct EncodedMatrix {
    Encoding encoding = Encoding::plain;
    Layout layout = Layout::rows;
    Dtype type = Dtype::bf16;  // of plain elements: bf16 where the layout is tiles
    const std::uint8_t *codes = nullptr, *scales = nullptr, *biases = nullptr, *globals = nullptr;
    std::int64_t groups = 1, outs = 0, ins = 0;
};
// Row-major [groups, outs, ins] of `type`.
void unpack_weight(Context&, const EncodedMatrix& from, Element type, void* to);
// To pieces (packing.h); outs and ins are multiples of 64.
void pack_weight(Context&, const EncodedMatrix& from, Packing packing, void* pieces);
// Pieces of random codes with an even scale, about N(0, deviation) seen from afar.
void fill_random_pieces(Context&, Packing packing, void* pieces, std::int64_t bytes, float deviation,
                        std::uint64_t seed);

// Random E4M3 codes of magnitudes below 2.
void fill_random_codes(Context&, void* codes, std::int64_t bytes, std::uint64_t seed);

// --- dispatch.cpp chooses between attention_any.cu and attention_mma.cu.
struct AttentionPointers {
    const void *q, *k, *v;
    void* out;
    const DeviceSegment* segments;  // on the device
    int count;                      // segments
    std::int64_t rows, most_rows;   // in all; of the longest segment
    bool any_canvas;
    const std::int32_t *key_begin, *key_end;
    int heads, kv_heads, head_dim;
    E4m3Target codes;  // of `out`, where attention_leaves_e4m3
};
void attention(Context&, Element, Element cache, const AttentionPointers&);
void attention_any(Context&, Element, Element cache, const AttentionPointers&);
bool attention_mma_fits(const Context&, int head_dim);
void attention_mma(Context&, const AttentionPointers&);  // bf16 throughout
// Whether an attention can leave its rows in E4M3, too.
bool attention_leaves_e4m3(const Context&, Element, Element cache, const AttentionPointers&);
// --- attention_merge.cu: out = the parts of attention, added in order (attention_parts.cuh). sums:
// [splits, rows, heads, dim]; ends: their maxima and sums [splits, rows, heads]; 2 splits or 4. codes: of
// rows of at most 8192 columns. Fragments: heads of 256 or 512 whose columns lie as the matrix unit leaves
// them: of every 16 of a row, lane q of four has 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, which it writes together.
enum class PartColumns : std::uint8_t { in_order, fragments };
void merge_attention(Context&, const float* sums, const float2* ends, std::int64_t rows, int heads, int dim,
                     int splits, PartColumns columns, void* out, const E4m3Target& codes);
void sm90_attention(Context&, const AttentionPointers&);  // heads of 256 and 512
// Whether it makes the keys' parts in blocks side by side, and then merges them.
bool sm90_attention_has_parts(const Context&, const AttentionPointers&);

// --- head.cu
// What a Logits holds besides its numbers; lives on the device so that a recorded pass may read it.
struct LogitsForm {
    float softcap;      // 0: the numbers are zt
    float temperature;  // zt = softcap * tanh(number / softcap) / temperature
};
// Statistics of zt of every row; `form` is written, from the arguments. scores: [rows, vocab] of `type`.
void logit_statistics(Context&, Element type, const void* scores, std::int64_t rows, std::int64_t vocab,
                      float softcap, const float* temperature, LogitsForm* form, RowStats* stats,
                      float* rounded_sums);
// stats of numbers that are zt already.
void given_statistics(Context&, Element type, const void* zt, std::int64_t rows, std::int64_t vocab,
                      LogitsForm* form, RowStats* stats, float* rounded_sums);
// zt of one row in f32.
void logit_row(Context&, Element type, const void* scores, std::int64_t row, std::int64_t vocab,
               const LogitsForm* form, float* out);
// p = rb(softmax(rb(zt))) [rows, vocab] of `type`.
void logit_probabilities(Context&, Element type, const void* scores, std::int64_t rows, std::int64_t vocab,
                         const LogitsForm* form, const RowStats* stats, const float* rounded_sums, void* out);

}  // namespace dgemma::backend::cuda
