// Which kernel serves a product or an attention: by element type, shape and device, never by the number of
// rows in a way that would change a bit of the result.
#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

namespace {

// Matrix units want bf16 on both sides, and rows that begin at multiples of 16 bytes.
bool on_matrix_units(Element x_type, const DeviceMatrix& weight, bool by_rows) {
    return x_type == Element::bf16 && weight.type == Element::bf16 && weight.ins % 8 == 0 &&
           (!by_rows || weight.outs % 8 == 0);
}

}  // namespace

void multiply(Context& c, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& weight,
              const Groups& groups, Element out_type, void* out) {
    if (!on_matrix_units(x_type, weight, false)) {
        multiply_any(c, x_type, x, rows, weight, false, groups, out_type, out);
    } else if (c.hopper() && groups.offsets == nullptr && out_type == Element::bf16 && sm90_fits(x, weight)) {
        sm90_multiply(c, x, rows, &weight, &out, 1, nullptr);
    } else {
        multiply_mma(c, x, rows, weight, false, groups, 0, out_type, out);
    }
}

void multiply_gated(Context& c, Element x_type, const void* x, std::int64_t rows, const DeviceMatrix& gate,
                    const DeviceMatrix& up, void* out) {
    if (c.hopper() && on_matrix_units(x_type, gate, false) && on_matrix_units(x_type, up, false) &&
        sm90_fits(x, gate) && sm90_fits(x, up)) {
        sm90_multiply_gated(c, x, rows, gate, up, out);
        return;
    }
    const std::size_t bytes = static_cast<std::size_t>(rows * gate.outs) * size_of(x_type);
    void* g = c.scratch(Scratch::gate, bytes);
    void* u = c.scratch(Scratch::up, bytes);
    multiply(c, x_type, x, rows, gate, {}, x_type, g);
    multiply(c, x_type, x, rows, up, {}, x_type, u);
    gelu_times(c, x_type, g, u, rows, gate.outs, gate.outs, out);
}

bool parts_fit(Element x_type, const DeviceMatrix& weight, bool by_rows) {
    return on_matrix_units(x_type, weight, by_rows);
}

void multiply_parts(Context& c, const void* x, std::int64_t rows, const DeviceMatrix& weight, bool by_rows,
                    std::int64_t parts, float* sums) {
    if (c.hopper() && sm90_fits(x, weight)) {
        sm90_multiply_parts(c, x, rows, weight, by_rows, parts, sums);
    } else {
        multiply_mma(c, x, rows, weight, by_rows, {}, parts, Element::f32, sums);
    }
}

namespace {

bool attention_on_sm90(const Context& c, Element type, Element cache, int head_dim) {
    return type == Element::bf16 && cache == Element::bf16 && c.hopper() &&
           (head_dim == 256 || head_dim == 512);
}

}  // namespace

bool attention_leaves_e4m3(const Context& c, Element type, Element cache, const AttentionPointers& p) {
    return attention_on_sm90(c, type, cache, p.head_dim) && sm90_attention_has_parts(c, p) &&
           p.heads * p.head_dim <= 8192;
}

void attention(Context& c, Element type, Element cache, const AttentionPointers& p) {
    if (attention_on_sm90(c, type, cache, p.head_dim)) {
        sm90_attention(c, p);
    } else if (type == Element::bf16 && cache == Element::bf16 && attention_mma_fits(c, p.head_dim)) {
        attention_mma(c, p);
    } else {
        attention_any(c, type, cache, p);
    }
}

}  // namespace dgemma::backend::cuda
