// The plain backend: f32, threaded, vectorised by the compiler. Every sum over K or over keys runs in
// ascending order within its own row, so a row's bits depend neither on its neighbours nor on the threads.
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/plain_attention.h"
#include "backend/cpu/plain_head.h"
#include "backend/cpu/plain_heads.h"
#include "backend/cpu/plain_kernels.h"
#include "backend/cpu/plain_machine.h"
#include "backend/cpu/plain_mlp.h"
#include "backend/cpu/plain_products.h"
#include "backend/cpu/weight_rows.h"

namespace dgemma::backend {

namespace {

using namespace cpu;

class PlainBackend final : public HostBackend {
  public:
    PlainBackend(Precision precision, int threads, bool pin, const KernelTables& tables)
        : HostBackend(precision), m_(precision == Precision::bf16, threads, pin, tables) {}

    [[nodiscard]] std::string_view name() const override { return "plain"; }

    void embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) override {
        m_.for_rows(out.rows, [&](std::int64_t r) {
            load_row(host(table).view(), ids[static_cast<std::size_t>(r)], row(out, r));
            m_.kernels.scale(row(out, r), nullptr, out.cols, scale, m_.bf16, row(out, r));
        });
    }

    // Weights stay what they are within a pass; outside of one they may be others at the same place.
    Status begin_pass(const PassInputs& inputs) override {
        m_.products.keep_columns(true);
        return HostBackend::begin_pass(inputs);
    }
    Result<std::span<const std::int32_t>> end_pass() override {
        m_.products.keep_columns(false);
        return HostBackend::end_pass();
    }

    bool set_soft_cutoff(float nats) override {
        soft_cutoff_ = nats;
        return true;
    }
    void soft_embed_canvas(HostLogits& previous, const Weight& table, float scale, const Mat& out) override {
        cpu::soft_embed(m_, previous, host(table).view(), scale, soft_cutoff_, out);
    }

    void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) override {
        m_.for_groups(a.rows, [&](std::int64_t r, std::int64_t count) {
            float* to = row(out, r);
            m_.kernels.add(row(a, r), b.data == nullptr ? nullptr : row(b, r), count * a.cols, m_.bf16, to);
            m_.norm_group(to, nullptr, count, a.cols, eps, to);
        });
    }

    void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) override {
        const float* w = weight == nullptr ? nullptr : host(*weight).vector();
        m_.for_groups(x.rows, [&](std::int64_t r, std::int64_t count) {
            m_.norm_group(row(x, r), w, count, x.cols, eps, row(out, r));
        });
    }

    void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                       const Mat& out) override {
        m_.for_groups(x.rows, [&](std::int64_t r, std::int64_t count) {
            m_.norm_add_group(row(x, r), host(weight).vector(), count, x.cols, eps, row(residual, r),
                              row(out, r));
        });
    }

    void project(const Mat& x, const Weight& weight, const Mat& out) override {
        const WeightView* const w = &host(weight).view();
        Products& products = m_.products;
        if (products.in_blocks(x.rows, std::span(&w, 1))) {
            products.note_work(*w, x.rows);
            const WeightView& tiles = products.as_tiles(std::span(&w, 1))[0];
            m_.for_blocks(x.rows, [&](std::int64_t first, std::int64_t count) {
                const Panels& panels =
                    products.pack_here(tiles, count, [&](std::int64_t r) { return row(x, first + r); });
                products.columns({&panels, &tiles, 0, row(out, first)}, 0, out.cols, m_.bf16);
            });
            return;
        }
        Panels& panels = products.panels_for(*w);
        panels.pack(m_.pool, x.rows, x.cols, [&](std::int64_t r) { return row(x, r); });
        const Product product{&panels, w, 0, f32(out)};
        products.run(std::span(&product, 1), m_.bf16);
    }

    void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                   const Mat& out) override {
        cpu::gated_mlp(m_, x, host(gate).view(), host(up).view(), host(down).view(), out);
    }

    void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps, const Weight* frequencies,
                    std::span<const std::int32_t> positions) override {
        cpu::norm_heads(m_, angles_, x, head_dim, weight, eps, frequencies, positions);
    }
    void attention_inputs(const AttentionInputs& args) override { cpu::attention_inputs(m_, angles_, args); }

    PassFacts take_facts() override {
        PassFacts facts = std::exchange(m_.facts, {});
        for (Products* products : {&m_.products, &m_.exact_products}) {
            const auto work = products->take_work();
            for (std::size_t i = 0; i < work.size(); ++i) facts.multiply_adds[i] += work[i];
        }
        return facts;
    }

    std::array<double, kArithmetics> measure_peaks() override {
        const auto rate = [&](double (*burn)(std::int64_t)) {
            std::vector<double> done(static_cast<std::size_t>(m_.pool.threads()));
            constexpr std::int64_t rounds = 4'000'000;  // some tens of milliseconds
            double best = 0;
            for (int repeat = 0; repeat < 3; ++repeat) {
                const auto start = std::chrono::steady_clock::now();
                m_.pool.parallel_for(m_.pool.threads(), 1, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i)
                        done[static_cast<std::size_t>(i)] = burn(rounds);
                });
                const double seconds =
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                best = std::max(best, std::accumulate(done.begin(), done.end(), 0.0) / seconds);
            }
            return best;
        };
        const DotKernels* dots = m_.products.kernels().dots;
        return {rate(m_.kernels.burn), dots == nullptr || dots->bf16 == nullptr ? 0.0 : rate(dots->burn_bf16),
                dots == nullptr ? 0.0 : rate(dots->burn_bytes)};
    }

    void attention(const AttentionArgs& args) override {
        const Arithmetic kind =
            attends_in_bf16(args, m_.products.kernels()) ? Arithmetic::bf16 : Arithmetic::f32;
        for (std::int64_t r = 0; r < args.q.rows; ++r) {
            const double keys =
                args.key_end[static_cast<std::size_t>(r)] - args.key_begin[static_cast<std::size_t>(r)];
            m_.facts.multiply_adds[static_cast<std::size_t>(kind)] +=
                2.0 * keys * static_cast<double>(args.q.cols);
        }
        plain_attention(args, m_.products.kernels(), m_.pool, m_.scratch[0], m_.bf16);
    }

    // h and both branches' inputs in one walk over the rows; the two norms of h have one factor.
    void after_attention(const AfterAttention& a) override {
        const std::int64_t n = a.h.cols;
        m_.for_groups(a.h.rows, [&](std::int64_t first, std::int64_t count) {
            m_.norm_add_group(row(a.branch, first), host(*a.norm).vector(), count, n, a.eps, row(a.h, first),
                              row(a.h, first));
            const auto factors = m_.norm_factors(row(a.h, first), count, n, a.eps);
            for (std::int64_t r = first; r < first + count; ++r) {
                const float factor = factors[static_cast<std::size_t>(r - first)];
                m_.kernels.scale(row(a.h, r), host(*a.dense_norm).vector(), n, factor, m_.bf16,
                                 row(a.dense, r));
                m_.kernels.scale(row(a.h, r), host(*a.experts_norm).vector(), n, factor, m_.bf16,
                                 row(a.experts, r));
            }
        });
    }

    void route(const Mat& h, const RouterWeights& w, const Routing& out) override {
        cpu::route(m_, h, w, out);
    }
    void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 const Mat& out) override {
        cpu::experts(m_, x, routing, host(gate_up).view(), host(down).view(), out);
    }

    void end_layer(const LayerEnd& a) override {
        m_.for_groups(a.residual.rows,
                      [&](std::int64_t first, std::int64_t count) { end_group(a, first, count); });
    }
    void finish_layer(const LayerEnd& a, std::int32_t stage, const Weight* next_norm,
                      const Mat& next) override {
        const std::int64_t n = a.out.cols;
        m_.for_groups(a.residual.rows, [&](std::int64_t first, std::int64_t count) {
            end_group(a, first, count);
            for (std::int64_t r = first; r < first + count; ++r) watch_row(row(a.out, r), n, r, stage);
            if (next_norm != nullptr)
                m_.norm_group(row(a.out, first), host(*next_norm).vector(), count, n, a.eps,
                              row(next, first));
        });
    }

    void head(const HeadArgs& args) override { cpu::head(m_, args); }

  private:
    void end_group(const LayerEnd& a, std::int64_t first, std::int64_t count) const {
        const std::int64_t n = a.residual.cols;
        float* d = row(a.dense, first);
        float* out = row(a.out, first);
        m_.norm_group(d, host(*a.dense_norm).vector(), count, n, a.eps, d);
        m_.norm_add_group(row(a.sparse, first), host(*a.sparse_norm).vector(), count, n, a.eps, d, d);
        m_.norm_add_group(d, host(*a.norm).vector(), count, n, a.eps, row(a.residual, first), out);
        m_.kernels.scale(out, nullptr, count * n, host(*a.scalar).vector()[0], m_.bf16, out);
    }

    PlainMachine m_;
    RotaryAngles angles_;
    float soft_cutoff_ = std::numeric_limits<float>::infinity();
};

}  // namespace

std::unique_ptr<Backend> make_plain_backend(Precision precision, int threads, std::string_view isa,
                                            bool pin) {
    const cpu::InstructionSet* set = cpu::instruction_set_named(isa);
    if (set == nullptr) return nullptr;
    const cpu::DotKernels* dots = precision == Precision::mixed ? set->dots : nullptr;
    return std::make_unique<PlainBackend>(precision, threads, pin, cpu::KernelTables{set->plain, dots});
}

}  // namespace dgemma::backend
