// The inner loops of the plain backend, compiled once per instruction set from the same source. The right
// table is chosen at run time. Only raw pointers cross this border: code compiled for a newer machine must
// not leak into functions that an older one runs.
#pragma once

#include <cstdint>

namespace dgemma::backend::cpu {

// What a slice of one row of logits adds to the row's statistics.
struct SliceStats {
    float max = 0;
    float sum = 0;       // of e^(z - max)
    float weighted = 0;  // of e^(z - max) (z - max)
    bool finite = true;
};

struct PlainKernels {
    const char* name;
    int rows;  // of a panel of x
    int cols;  // of a tile of the weight; divides page_tokens

    // `rounds` rounds of nothing but multiply-adds, in registers; -> multiply-adds done.
    double (*burn)(std::int64_t rounds);

    // c [rows, cols] (leading dimension ldc) = or += sum over k, ascending, of a[k][rows] * b[k * ldb + col].
    void (*tile)(std::int64_t k, const float* a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                 bool add);

    // x[0 .. count - 1], f32 [k] each -> a panel [k][rows], zeros where it has more rows than `count`.
    void (*pack)(const float* const* x, std::int64_t k, int count, float* panel);

    // gate[i] = rb(rb(gelu(gate[i])) * up[i])
    void (*gelu_times)(float* gate, const float* up, std::int64_t n, bool bf16);
    // out[i] = softcap * tanh(x[i] / softcap) / temperature, and the statistics of that while it is at hand.
    SliceStats (*softcap)(const float* x, std::int64_t n, float softcap, float temperature, float* out);
    // The sum of x[i]^2 in double, over eight lanes counted from x[0]; of `rows` rows `stride` apart.
    void (*sum_squares)(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t n, double* sums);
    // out[i] = rb(x[i] * scale * w[i]); w null: without. out may be x.
    void (*scale)(const float* x, const float* w, std::int64_t n, float scale, bool bf16, float* out);
    // out[i] = rb(b[i] + rb(x[i] * scale * w[i])), no product fused with the sum. out may be either.
    void (*scale_add)(const float* x, const float* w, std::int64_t n, float scale, bool bf16, const float* b,
                      float* out);
    // out[i] = rb(a[i] + b[i]); b null: a alone. out may be either.
    void (*add)(const float* a, const float* b, std::int64_t n, bool bf16, float* out);
    // out[i] = rb(out[i] + rb(x[i] * scale))
    void (*add_scaled)(const float* x, std::int64_t n, float scale, bool bf16, float* out);
    // One head [2 * half] in place, component d turned with d + half: x[d] = rb(rb(x[d] c[d]) - rb(x[d +
    // half] s[d])) and so on (contract/model.md 3, "RoPE"). No product is fused with a sum.
    void (*rotate)(float* x, std::int64_t half, const float* c, const float* s, bool bf16);
    // x[i] = rb(x[i])
    void (*round)(float* x, std::int64_t n);

    float (*max)(const float* x, std::int64_t n);
    // x[i] = exp(x[i] - shift); returns the sum. Lanes are counted from x[0].
    float (*exp_sum)(float* x, std::int64_t n, float shift);
    // The sum of exp(x[i] - shift), without writing.
    float (*sum_exp)(const float* x, std::int64_t n, float shift);
    // out[i] = rb(exp(x[i] - shift) / divisor)
    void (*softmax)(const float* x, std::int64_t n, float shift, float divisor, bool bf16, float* out);
    // out[i] = x[i] as bf16
    void (*to_bf16)(const float* x, std::int64_t n, std::uint16_t* out);
    // x[i] = rb(x[i] / divisor)
    void (*divide)(float* x, std::int64_t n, float divisor, bool bf16);
};

extern const PlainKernels plain_baseline;
#if defined(__x86_64__)
extern const PlainKernels plain_avx2;
extern const PlainKernels plain_avx512;
#elif defined(__aarch64__)
extern const PlainKernels plain_neon;
#endif

}  // namespace dgemma::backend::cpu
