// The strict scalar backend. It reads like the contract and is judged by the goldens; everything faster is
// judged by it. Compiled without contraction of a * b + c, so that what is written is what is computed.
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "backend/cpu/cpu.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/weight_rows.h"
#include "base/e4m3_rows.h"

namespace dgemma::backend {

namespace {

using namespace cpu;

// A dot product summed in double and rounded once: as near the exact value as f32 can be.
double dot(const float* a, const float* b, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

class ReferenceBackend final : public HostBackend {
  public:
    ReferenceBackend(Precision precision, bool e4m3_activations)
        : HostBackend(precision), bf16_(precision == Precision::bf16), e4m3_activations_(e4m3_activations) {}

    [[nodiscard]] std::string_view name() const override { return "reference"; }

    void embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) override {
        for (std::int64_t r = 0; r < out.rows; ++r) {
            load_row(host(table).view(), ids[static_cast<std::size_t>(r)], row(out, r));
            for (std::int64_t c = 0; c < out.cols; ++c) row(out, r)[c] = rb(row(out, r)[c] * scale);
        }
    }

    void soft_embed_canvas(HostLogits& logits, const Weight& table, float scale, const Mat& out) override {
        const std::int64_t vocab = logits.vocab();
        std::vector<float> p(static_cast<std::size_t>(vocab));
        std::vector<float> e(static_cast<std::size_t>(out.cols));
        std::vector<double> sum(static_cast<std::size_t>(out.rows * out.cols));
        std::vector<float> probabilities(static_cast<std::size_t>(out.rows * vocab));
        for (std::int64_t r = 0; r < out.rows; ++r) {
            for (std::int64_t i = 0; i < vocab; ++i) p[static_cast<std::size_t>(i)] = rb(logits.zt(r)[i]);
            softmax(p.data(), vocab);
            for (std::int64_t i = 0; i < vocab; ++i)
                probabilities[static_cast<std::size_t>(r * vocab + i)] = rb(p[static_cast<std::size_t>(i)]);
        }
        for (std::int64_t i = 0; i < vocab; ++i) {
            load_row(host(table).view(), i, e.data());
            for (std::int64_t r = 0; r < out.rows; ++r) {
                const double weight = probabilities[static_cast<std::size_t>(r * vocab + i)];
                double* to = sum.data() + r * out.cols;
                for (std::int64_t c = 0; c < out.cols; ++c) to[c] += weight * e[static_cast<std::size_t>(c)];
            }
        }
        for (std::int64_t i = 0; i < out.rows * out.cols; ++i) {
            f32(out)[i] = rb(rb(static_cast<float>(sum[static_cast<std::size_t>(i)])) * scale);
        }
    }

    void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) override {
        std::vector<float> sum(static_cast<std::size_t>(a.cols));
        for (std::int64_t r = 0; r < a.rows; ++r) {
            for (std::int64_t c = 0; c < a.cols; ++c) {
                sum[static_cast<std::size_t>(c)] =
                    rb(row(a, r)[c] + (b.data == nullptr ? 0.0f : row(b, r)[c]));
            }
            rms_norm_row(sum.data(), nullptr, a.cols, eps, bf16_, row(out, r));
        }
    }

    void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) override {
        const float* w = weight == nullptr ? nullptr : host(*weight).vector();
        for (std::int64_t r = 0; r < x.rows; ++r) rms_norm_row(row(x, r), w, x.cols, eps, bf16_, row(out, r));
    }

    void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                       const Mat& out) override {
        std::vector<float> y(static_cast<std::size_t>(x.cols));
        for (std::int64_t r = 0; r < x.rows; ++r) {
            rms_norm_row(row(x, r), host(weight).vector(), x.cols, eps, bf16_, y.data());
            for (std::int64_t c = 0; c < x.cols; ++c)
                row(out, r)[c] = rb(row(residual, r)[c] + y[static_cast<std::size_t>(c)]);
        }
    }

    void project(const Mat& x, const Weight& weight, const Mat& out) override {
        matmul(f32(x), x.rows, host(weight).view(), 0, x.cols, out.cols, f32(out));
    }

    void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                   const Mat& out) override {
        const std::int64_t width = gate.shape()[0];
        std::vector<float> g(static_cast<std::size_t>(x.rows * width)), u(g.size());
        matmul(f32(x), x.rows, host(gate).view(), 0, x.cols, width, g.data());
        matmul(f32(x), x.rows, host(up).view(), 0, x.cols, width, u.data());
        for (std::size_t i = 0; i < g.size(); ++i) g[i] = rb(rb(gelu(g[i])) * u[i]);
        matmul(g.data(), x.rows, host(down).view(), 0, width, out.cols, f32(out), kE4m3HiddenColumns);
    }

    void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps, const Weight* frequencies,
                    std::span<const std::int32_t> positions) override {
        const float* w = weight == nullptr ? nullptr : host(*weight).vector();
        for (std::int64_t r = 0; r < x.rows; ++r) {
            for (std::int64_t c = 0; c < x.cols; c += head_dim) {
                float* head = row(x, r) + c;
                rms_norm_row(head, w, head_dim, eps, bf16_, head);
                if (frequencies != nullptr) {
                    rotate_head(head, head_dim, host(*frequencies).vector(),
                                positions[static_cast<std::size_t>(r)], bf16_);
                }
            }
        }
    }

    void attention(const AttentionArgs& a) override {
        const std::int64_t d = a.head_dim;
        for (const AttentionSegment& s : a.segments) {
            for (std::int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
                const std::int64_t begin = a.key_begin[static_cast<std::size_t>(r)];
                const std::int64_t end = a.key_end[static_cast<std::size_t>(r)];
                std::vector<float> scores(static_cast<std::size_t>(end - begin)),
                    key(static_cast<std::size_t>(d));
                for (int h = 0; h < a.heads; ++h) {
                    const std::int64_t kv_head = h / (a.heads / a.kv_heads);
                    for (std::int64_t p = begin; p < end; ++p) {
                        load_key(a, s, s.cache.keys, a.k, kv_head, p, key.data());
                        scores[static_cast<std::size_t>(p - begin)] =
                            rb(static_cast<float>(dot(row(a.q, r) + h * d, key.data(), d)));
                    }
                    softmax(scores.data(), end - begin);
                    std::vector<double> sum(static_cast<std::size_t>(d));
                    for (std::int64_t p = begin; p < end; ++p) {
                        load_key(a, s, s.cache.values, a.v, kv_head, p, key.data());
                        const double weight = rb(scores[static_cast<std::size_t>(p - begin)]);
                        for (std::int64_t i = 0; i < d; ++i)
                            sum[static_cast<std::size_t>(i)] += weight * key[static_cast<std::size_t>(i)];
                    }
                    for (std::int64_t i = 0; i < d; ++i)
                        row(a.out, r)[h * d + i] = rb(static_cast<float>(sum[static_cast<std::size_t>(i)]));
                }
            }
        }
    }

    void route(const Mat& h, const RouterWeights& w, const Routing& out) override {
        const std::int64_t experts = w.proj->shape()[0];
        std::vector<float> a(static_cast<std::size_t>(h.cols)), z(static_cast<std::size_t>(experts));
        const float* scale = host(*w.scale).vector();
        for (std::int64_t r = 0; r < h.rows; ++r) {
            rms_norm_row(row(h, r), nullptr, h.cols, w.eps, bf16_, a.data());
            for (std::int64_t c = 0; c < h.cols; ++c) {
                float& x = a[static_cast<std::size_t>(c)];
                x = rb(rb(x * scale[c]) * w.input_scale);
            }
            matmul(a.data(), 1, host(*w.proj).view(), 0, h.cols, experts, z.data());
            choose_experts(z.data(), experts, host(*w.per_expert_scale).vector(), out.ids.cols,
                           static_cast<std::int32_t*>(out.ids.data) + r * out.ids.cols, row(out.weights, r));
            if (out.probabilities.data != nullptr) std::copy(z.begin(), z.end(), row(out.probabilities, r));
        }
    }

    void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 const Mat& out) override {
        const std::int64_t width = down.shape()[2];
        const std::int64_t hidden = x.cols;
        std::vector<float> gu(static_cast<std::size_t>(2 * width)), act(static_cast<std::size_t>(width)),
            y(static_cast<std::size_t>(hidden));
        for (std::int64_t r = 0; r < x.rows; ++r) {
            std::fill_n(row(out, r), hidden, 0.0f);
            for (std::int64_t k = 0; k < routing.ids.cols; ++k) {  // ascending id, one rounding per addition
                const std::int64_t e = static_cast<std::int32_t*>(routing.ids.data)[r * routing.ids.cols + k];
                matmul(row(x, r), 1, host(gate_up).view(), e * 2 * width, hidden, 2 * width, gu.data());
                for (std::int64_t i = 0; i < width; ++i) {
                    act[static_cast<std::size_t>(i)] = rb(rb(gelu(gu[static_cast<std::size_t>(i)])) *
                                                          gu[static_cast<std::size_t>(width + i)]);
                }
                matmul(act.data(), 1, host(down).view(), e * hidden, width, hidden, y.data(),
                       kE4m3HiddenColumns);
                const float weight = row(routing.weights, r)[k];
                for (std::int64_t c = 0; c < hidden; ++c) {
                    row(out, r)[c] = rb(row(out, r)[c] + rb(y[static_cast<std::size_t>(c)] * weight));
                }
            }
        }
    }

    void end_layer(const LayerEnd& a) override {
        const std::int64_t n = a.residual.cols;
        std::vector<float> d(static_cast<std::size_t>(n)), m(d.size()), f(d.size());
        const float scalar = host(*a.scalar).vector()[0];
        for (std::int64_t r = 0; r < a.residual.rows; ++r) {
            rms_norm_row(row(a.dense, r), host(*a.dense_norm).vector(), n, a.eps, bf16_, d.data());
            rms_norm_row(row(a.sparse, r), host(*a.sparse_norm).vector(), n, a.eps, bf16_, m.data());
            for (std::size_t c = 0; c < d.size(); ++c) d[c] = rb(d[c] + m[c]);
            rms_norm_row(d.data(), host(*a.norm).vector(), n, a.eps, bf16_, f.data());
            for (std::int64_t c = 0; c < n; ++c) {
                row(a.out, r)[c] = rb(rb(row(a.residual, r)[c] + f[static_cast<std::size_t>(c)]) * scalar);
            }
        }
    }

    void head(const HeadArgs& a) override {
        for (const HeadArgs::Canvas& canvas : a.canvases) {
            auto& logits = static_cast<HostLogits&>(*canvas.logits);
            const std::int64_t vocab = logits.vocab();
            matmul(row(a.x, canvas.first_row), canvas.rows, host(*a.table).view(), 0, a.x.cols, vocab,
                   logits.zt(0));
            for (std::int64_t r = 0; r < canvas.rows; ++r) {
                float* z = logits.zt(r);
                for (std::int64_t i = 0; i < vocab; ++i)
                    z[i] = a.softcap * std::tanh(z[i] / a.softcap) / canvas.temperature;
                logits.stats_of(r) = row_stats(z, vocab);
            }
        }
    }

  private:
    // out [n, outs] = rb(x [n, ins] W^T), W the `outs` rows of `weight` from `first_row` on. piece: columns
    // of x that share a scale where x becomes E4M3; 0: all.
    void matmul(const float* x, std::int64_t n, const WeightView& weight, std::int64_t first_row,
                std::int64_t ins, std::int64_t outs, float* out, std::int64_t piece = 0) const {
        std::vector<float> w(static_cast<std::size_t>(ins)), rounded;
        if (e4m3_activations_ && weight.encoding == Encoding::fp8_row) {
            rounded.assign(x, x + n * ins);
            for (std::int64_t r = 0; r < n; ++r)
                round_to_e4m3(std::span(rounded).subspan(static_cast<std::size_t>(r * ins),
                                                         static_cast<std::size_t>(ins)),
                              piece);
            x = rounded.data();
        }
        for (std::int64_t o = 0; o < outs; ++o) {
            load_row(weight, first_row + o, w.data());
            for (std::int64_t r = 0; r < n; ++r)
                out[r * outs + o] = rb(static_cast<float>(dot(x + r * ins, w.data(), ins)));
        }
    }

    static void softmax(float* x, std::int64_t n) {
        const float top = *std::max_element(x, x + n);
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
        for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / sum);
    }

    // l = zt - logsumexp, q = softmax(l), h = -sum q * max(l, lowest) (contract/generation.md 3).
    static RowStats row_stats(const float* zt, std::int64_t n) {
        RowStats s;
        for (std::int64_t i = 0; i < n; ++i) {
            if (!std::isfinite(zt[i])) return {.finite = false};
            if (zt[i] > zt[s.argmax]) s.argmax = static_cast<std::int32_t>(i);
        }
        s.max = zt[s.argmax];
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += std::exp(zt[i] - s.max);
        s.log_sum_exp = s.max + static_cast<float>(std::log(sum));
        double entropy = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            const float l = zt[i] - s.log_sum_exp;
            entropy -= static_cast<double>(std::exp(l)) * std::max(l, std::numeric_limits<float>::lowest());
        }
        s.entropy = static_cast<float>(entropy);
        return s;
    }

    // Key or value of absolute position p: from the cache, or from the segment's own rows.
    static void load_key(const AttentionArgs& a, const AttentionSegment& s, std::span<void* const> pages,
                         const Mat& own, std::int64_t kv_head, std::int64_t p, float* out) {
        const std::int64_t d = a.head_dim;
        if (s.canvas_position >= 0 && p >= s.canvas_position) {
            std::copy_n(row(own, s.first_row + p - s.canvas_position) + kv_head * d, d, out);
            return;
        }
        const std::int64_t slot = p % s.cache.capacity;
        const std::int64_t at = (kv_head * page_tokens + slot % page_tokens) * d;
        const void* page = pages[static_cast<std::size_t>(slot / page_tokens)];
        for (std::int64_t i = 0; i < d; ++i) {
            const auto half = [&] { return static_cast<const std::uint16_t*>(page)[at + i]; };
            out[i] = s.cache.type == Dtype::bf16  ? bf16_to_f32(half())
                     : s.cache.type == Dtype::f16 ? f16_to_f32(half())
                                                  : static_cast<const float*>(page)[at + i];
        }
    }

    bool bf16_, e4m3_activations_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(Precision precision, bool e4m3_activations) {
    return std::make_unique<ReferenceBackend>(precision, e4m3_activations);
}

}  // namespace dgemma::backend
