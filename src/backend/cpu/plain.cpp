// The plain backend: f32, threaded, vectorised by the compiler. Every sum over K or over keys runs in
// ascending order within its own row, so a row's bits depend neither on its neighbours nor on the threads.
#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "backend/cpu/cpu.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/plain_attention.h"
#include "backend/cpu/plain_experts.h"
#include "backend/cpu/plain_kernels.h"
#include "backend/cpu/plain_products.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/weight_rows.h"
#include "base/thread_pool.h"

namespace dgemma::backend {

namespace {

using namespace cpu;

constexpr std::int64_t kHeadSlice = 256;  // of the vocabulary; a multiple of every tile's width
constexpr std::int64_t kRowGrain = 4;     // rows of elementwise work a thread takes at a time

class PlainBackend final : public HostBackend {
  public:
    PlainBackend(Precision precision, int threads, bool pin, const PlainKernels& kernels,
                 const DotKernels* dots)
        : HostBackend(precision),
          bf16_(precision == Precision::bf16),
          pool_(threads, pin),
          kernels_(kernels),
          products_({&kernels, dots}, pool_),
          exact_products_({&kernels, nullptr}, pool_) {}

    [[nodiscard]] std::string_view name() const override { return "plain"; }

    void embed(std::span<const std::int32_t> ids, const Weight& table, float scale, const Mat& out) override {
        for_rows(out.rows, [&](std::int64_t r) {
            load_row(host(table).view(), ids[static_cast<std::size_t>(r)], row(out, r));
            kernels_.scale(row(out, r), nullptr, out.cols, scale, bf16_, row(out, r));
        });
    }

    bool set_soft_cutoff(float nats) override {
        soft_cutoff_ = nats;
        return true;
    }

    void soft_embed(Logits& previous, const Weight& table, float scale, const Mat& out) override {
        auto& logits = static_cast<HostLogits&>(previous);
        // The model gets bf16(z / T), and nobody else reads it again.
        if (bf16_) {
            for_rows(out.rows, [&](std::int64_t r) {
                kernels_.round(logits.zt(r), logits.vocab());
                logits.sum_of(r) = 0;
            });
        }
        std::vector<std::uint8_t> peaked(static_cast<std::size_t>(out.rows));
        if (std::isfinite(soft_cutoff_)) soft_embed_peaked(logits, host(table).view(), out, peaked);
        std::vector<std::int64_t> others;
        for (std::int64_t r = 0; r < out.rows; ++r) {
            if (peaked[static_cast<std::size_t>(r)] == 0) others.push_back(r);
        }
        soft_embed_whole(logits, host(table).view(), others, out);
        for_rows(out.rows, [&](std::int64_t r) {
            if (bf16_) kernels_.round(row(out, r), out.cols);
            kernels_.scale(row(out, r), nullptr, out.cols, scale, bf16_, row(out, r));
        });
    }

    void add_then_norm(const Mat& a, const Mat& b, float eps, const Mat& out) override {
        for_rows(a.rows, [&](std::int64_t r) {
            float* to = row(out, r);
            kernels_.add(row(a, r), b.data == nullptr ? nullptr : row(b, r), a.cols, bf16_, to);
            norm_row(to, nullptr, a.cols, eps, to);
        });
    }

    void rms_norm(const Mat& x, const Weight* weight, float eps, const Mat& out) override {
        const float* w = weight == nullptr ? nullptr : host(*weight).vector();
        for_rows(x.rows, [&](std::int64_t r) { norm_row(row(x, r), w, x.cols, eps, row(out, r)); });
    }

    void norm_then_add(const Mat& x, const Weight& weight, float eps, const Mat& residual,
                       const Mat& out) override {
        for_rows(x.rows, [&](std::int64_t r) {
            norm_row(row(x, r), host(weight).vector(), x.cols, eps, row(x, r));
            kernels_.add(row(residual, r), row(x, r), x.cols, bf16_, row(out, r));
        });
    }

    void project(const Mat& x, const Weight& weight, const Mat& out) override {
        Panels& panels = products_.panels_for(host(weight).view());
        panels.pack(pool_, x.rows, x.cols, [&](std::int64_t r) { return row(x, r); });
        const Product product{&panels, &host(weight).view(), 0, f32(out)};
        products_.run(std::span(&product, 1), bf16_);
    }

    void gated_mlp(const Mat& x, const Weight& gate, const Weight& up, const Weight& down,
                   const Mat& out) override {
        const std::int64_t width = gate.shape()[0];
        float* g = scratch_[0].floats(x.rows * width);
        float* u = scratch_[1].floats(x.rows * width);
        const auto source = [&](std::int64_t r) { return row(x, r); };
        Panels& gate_x = products_.panels_for(host(gate).view(), 0);
        Panels& up_x = products_.panels_for(host(up).view(), 1);
        const bool shared = gate_x.operand() == up_x.operand();
        gate_x.pack(pool_, x.rows, x.cols, source);
        if (!shared) up_x.pack(pool_, x.rows, x.cols, source);
        const Product both[] = {{&gate_x, &host(gate).view(), 0, g},
                                {shared ? &gate_x : &up_x, &host(up).view(), 0, u}};
        products_.run(both, bf16_);
        for_rows(x.rows,
                 [&](std::int64_t r) { kernels_.gelu_times(g + r * width, u + r * width, width, bf16_); });
        Panels& panels = products_.panels_for(host(down).view());
        panels.pack(pool_, x.rows, width, [&](std::int64_t r) { return g + r * width; });
        const Product last{&panels, &host(down).view(), 0, f32(out)};
        products_.run(std::span(&last, 1), bf16_);
    }

    void norm_heads(const Mat& x, int head_dim, const Weight* weight, float eps, const Weight* frequencies,
                    std::span<const std::int32_t> positions) override {
        const float* w = weight == nullptr ? nullptr : host(*weight).vector();
        for_rows(x.rows, [&](std::int64_t r) {
            for (std::int64_t c = 0; c < x.cols; c += head_dim)
                norm_row(row(x, r) + c, w, head_dim, eps, row(x, r) + c);
            if (frequencies == nullptr) return;
            rotate_row(row(x, r), x.cols, head_dim, host(*frequencies).vector(),
                       positions[static_cast<std::size_t>(r)], bf16_);
        });
    }

    PassFacts take_facts() override {
        PassFacts facts = std::exchange(facts_, {});
        for (Products* products : {&products_, &exact_products_}) {
            const auto work = products->take_work();
            for (std::size_t i = 0; i < work.size(); ++i) facts.multiply_adds[i] += work[i];
        }
        return facts;
    }

    std::array<double, kArithmetics> measure_peaks() override {
        const auto rate = [&](double (*burn)(std::int64_t)) {
            std::vector<double> done(static_cast<std::size_t>(pool_.threads()));
            constexpr std::int64_t rounds = 4'000'000;  // some tens of milliseconds
            double best = 0;
            for (int repeat = 0; repeat < 3; ++repeat) {
                const auto start = std::chrono::steady_clock::now();
                pool_.parallel_for(pool_.threads(), 1, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i)
                        done[static_cast<std::size_t>(i)] = burn(rounds);
                });
                const double seconds =
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                best = std::max(best, std::accumulate(done.begin(), done.end(), 0.0) / seconds);
            }
            return best;
        };
        const DotKernels* dots = products_.kernels().dots;
        return {rate(kernels_.burn), dots == nullptr || dots->bf16 == nullptr ? 0.0 : rate(dots->burn_bf16),
                dots == nullptr ? 0.0 : rate(dots->burn_bytes)};
    }

    void attention(const AttentionArgs& args) override {
        const Arithmetic kind =
            attends_in_bf16(args, products_.kernels()) ? Arithmetic::bf16 : Arithmetic::f32;
        for (std::int64_t r = 0; r < args.q.rows; ++r) {
            const double keys =
                args.key_end[static_cast<std::size_t>(r)] - args.key_begin[static_cast<std::size_t>(r)];
            facts_.multiply_adds[static_cast<std::size_t>(kind)] +=
                2.0 * keys * static_cast<double>(args.q.cols);
        }
        plain_attention(args, products_.kernels(), pool_, bf16_);
    }

    void route(const Mat& h, const RouterWeights& w, const Routing& out) override {
        const std::int64_t experts = w.proj->shape()[0];
        float* a = scratch_[0].floats(h.rows * h.cols);
        float* z = scratch_[1].floats(h.rows * experts);
        const float* scale = host(*w.scale).vector();
        for_rows(h.rows, [&](std::int64_t r) {
            float* x = a + r * h.cols;
            norm_row(row(h, r), nullptr, h.cols, w.eps, x);
            kernels_.scale(x, scale, h.cols, 1.0f, bf16_, x);
            kernels_.scale(x, nullptr, h.cols, w.input_scale, bf16_, x);
        });
        // Who gets a row must not hang on the rounding of a faster product.
        Panels& panels = exact_products_.panels_for(host(*w.proj).view());
        panels.pack(pool_, h.rows, h.cols, [&](std::int64_t r) { return a + r * h.cols; });
        const Product product{&panels, &host(*w.proj).view(), 0, z};
        exact_products_.run(std::span(&product, 1), bf16_);
        for_rows(h.rows, [&](std::int64_t r) {
            float* p = z + r * experts;
            choose_experts(p, experts, host(*w.per_expert_scale).vector(), out.ids.cols,
                           static_cast<std::int32_t*>(out.ids.data) + r * out.ids.cols, row(out.weights, r));
            if (out.probabilities.data != nullptr) std::copy_n(p, experts, row(out.probabilities, r));
        });
    }

    void experts(const Mat& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 const Mat& out) override {
        const std::int64_t width = down.shape()[2];
        const std::int64_t hidden = x.cols;
        const std::int64_t k = routing.ids.cols;
        const ExpertRows sorted(routing, gate_up.shape()[0]);
        const auto touched = static_cast<std::int64_t>(sorted.groups.size());
        facts_.fewest_experts =
            facts_.fewest_experts == 0 ? touched : std::min(facts_.fewest_experts, touched);
        for (const ExpertRows::Group& g : sorted.groups)
            facts_.most_expert_rows = std::max(facts_.most_expert_rows, g.count);
        const std::int64_t places = x.rows * k;
        float* gu = scratch_[0].floats(places * 2 * width);
        float* y = scratch_[1].floats(places * hidden);

        multiply(
            sorted, gate_up, hidden,
            [&](std::int64_t p) { return row(x, sorted.row_at[static_cast<std::size_t>(p)]); }, gu);
        for_rows(places, [&](std::int64_t p) {
            float* gate = gu + p * 2 * width;
            kernels_.gelu_times(gate, gate + width, width, bf16_);
        });
        multiply(
            sorted, down, width, [&](std::int64_t p) { return gu + p * 2 * width; }, y);

        // Back to the rows: each row's choices stand in ascending id, and are added in that order.
        for_rows(x.rows, [&](std::int64_t r) {
            float* to = row(out, r);
            std::fill_n(to, hidden, 0.0f);
            for (std::int64_t i = 0; i < k; ++i) {
                const float* from = y + sorted.place_of[static_cast<std::size_t>(r * k + i)] * hidden;
                kernels_.add_scaled(from, hidden, row(routing.weights, r)[i], bf16_, to);
            }
        });
    }

    void end_layer(const LayerEnd& a) override {
        const std::int64_t n = a.residual.cols;
        const float scalar = host(*a.scalar).vector()[0];
        for_rows(a.residual.rows, [&](std::int64_t r) {
            float* d = row(a.dense, r);
            float* m = row(a.sparse, r);
            norm_row(d, host(*a.dense_norm).vector(), n, a.eps, d);
            norm_row(m, host(*a.sparse_norm).vector(), n, a.eps, m);
            kernels_.add(d, m, n, bf16_, d);
            norm_row(d, host(*a.norm).vector(), n, a.eps, m);
            kernels_.add(row(a.residual, r), m, n, bf16_, row(a.out, r));
            kernels_.scale(row(a.out, r), nullptr, n, scalar, bf16_, row(a.out, r));
        });
    }

    void head(const HeadArgs& a) override {
        Panels& panels = products_.panels_for(host(*a.table).view());
        for (const HeadArgs::Canvas& canvas : a.canvases) {
            auto& logits = static_cast<HostLogits&>(*canvas.logits);
            const std::int64_t vocab = logits.vocab();
            panels.pack(pool_, canvas.rows, a.x.cols,
                        [&](std::int64_t r) { return row(a.x, canvas.first_row + r); });
            const Product product{&panels, &host(*a.table).view(), 0, nullptr, kHeadSlice};
            products_.note_work(product);
            // A slice of the vocabulary for all rows at a time: cap and statistics find it in the cache.
            const std::int64_t slices = (vocab + kHeadSlice - 1) / kHeadSlice;
            std::vector<SliceStats> stats(static_cast<std::size_t>(canvas.rows * slices));
            pool_.parallel_for(slices, 1, [&](std::int64_t begin, std::int64_t end) {
                Product part = product;
                part.out = thread_scratch(3, canvas.rows * kHeadSlice);
                for (std::int64_t slice = begin; slice < end; ++slice) {
                    const std::int64_t first = slice * kHeadSlice;
                    const std::int64_t count = std::min(kHeadSlice, vocab - first);
                    products_.columns(part, first, first + count, bf16_);
                    for (std::int64_t r = 0; r < canvas.rows; ++r) {
                        float* z = part.out + r * kHeadSlice;
                        stats[static_cast<std::size_t>(r * slices + slice)] =
                            kernels_.softcap(z, count, a.softcap, canvas.temperature);
                        std::copy_n(z, count, logits.zt(r) + first);
                    }
                }
            });
            for_rows(canvas.rows, [&](std::int64_t r) {
                merge_stats(std::span(stats).subspan(static_cast<std::size_t>(r * slices),
                                                     static_cast<std::size_t>(slices)),
                            logits, r);
            });
        }
    }

  private:
    template <class F>
    void for_rows(std::int64_t rows, F f) {
        pool_.parallel_for(rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) f(r);
        });
    }

    // RMSNorm of one row (contract/model.md 3); w null: without a weight. out may be x.
    void norm_row(const float* x, const float* w, std::int64_t n, float eps, float* out) const {
        const auto mean = static_cast<float>(kernels_.sum_squares(x, n) / static_cast<double>(n));
        kernels_.scale(x, w, n, std::pow(mean + eps, -0.5f), bf16_, out);
    }

    // The largest entry of a row: the head has seen it, unless the row came from elsewhere.
    [[nodiscard]] float largest(HostLogits& logits, std::int64_t r) const {
        return logits.sum_of(r) > 0 ? logits.stats_of(r).max : kernels_.max(logits.zt(r), logits.vocab());
    }

    // Rows with few enough entries within the cutoff: the sum over those, in ascending id. Marks the rows it
    // did.
    void soft_embed_peaked(HostLogits& logits, const WeightView& table, const Mat& out,
                           std::span<std::uint8_t> done) {
        const std::int64_t vocab = logits.vocab();
        const std::int64_t most = vocab / 16;  // beyond it the dense product is the faster way
        std::vector<std::int64_t> entries(done.size());
        pool_.parallel_for(out.rows, 1, [&](std::int64_t begin, std::int64_t end) {
            std::vector<std::int32_t> ids;
            std::vector<float> p;
            for (std::int64_t r = begin; r < end; ++r) {
                const float* zt = logits.zt(r);
                const float top = largest(logits, r);
                ids.clear();
                p.clear();
                for (std::int64_t i = 0; i < vocab && static_cast<std::int64_t>(ids.size()) <= most; ++i) {
                    if (zt[i] < top - soft_cutoff_) continue;
                    ids.push_back(static_cast<std::int32_t>(i));
                    p.push_back(zt[i]);
                }
                if (static_cast<std::int64_t>(ids.size()) > most) continue;
                const auto count = static_cast<std::int64_t>(p.size());
                kernels_.divide(p.data(), count, kernels_.exp_sum(p.data(), count, top), bf16_);
                float* e = thread_scratch(0, out.cols);
                std::fill_n(row(out, r), out.cols, 0.0f);
                for (std::size_t i = 0; i < ids.size(); ++i) {
                    load_row(table, ids[i], e);
                    kernels_.add_scaled(e, out.cols, p[i], false, row(out, r));
                }
                entries[static_cast<std::size_t>(r)] = count;
                done[static_cast<std::size_t>(r)] = 1;
            }
        });
        for (std::size_t r = 0; r < done.size(); ++r) {
            facts_.soft_rows += done[r];
            facts_.soft_entries += entries[r];
        }
    }

    // The sum over the whole vocabulary for the rows named, in slices: probabilities of a slice for all rows,
    // then their share of the product.
    void soft_embed_whole(HostLogits& logits, const WeightView& table, std::span<const std::int64_t> rows,
                          const Mat& out) {
        if (rows.empty()) return;
        const std::int64_t vocab = logits.vocab();
        const auto n = static_cast<std::int64_t>(rows.size());
        facts_.soft_rows += n;
        facts_.soft_entries += n * vocab;
        std::vector<float> top(rows.size()), sum(rows.size());
        for_rows(n, [&](std::int64_t i) {
            const std::int64_t r = rows[static_cast<std::size_t>(i)];
            float& own = sum[static_cast<std::size_t>(i)];
            top[static_cast<std::size_t>(i)] = largest(logits, r);
            own = logits.sum_of(r);
            if (own == 0) own = kernels_.sum_exp(logits.zt(r), vocab, top[static_cast<std::size_t>(i)]);
        });
        const bool all = n == out.rows;
        float* to = all ? f32(out) : scratch_[0].floats(n * out.cols);
        constexpr std::int64_t slice = 1024;
        Panels& panels = vocab % 2 == 0 ? products_.panels_for(table) : exact_products_.panels_for(table);
        float* p = scratch_[1].floats(n * slice);
        for (std::int64_t first = 0; first < vocab; first += slice) {
            const std::int64_t count = std::min(slice, vocab - first);
            for_rows(n, [&](std::int64_t i) {
                float* of_row = p + i * count;
                std::copy_n(logits.zt(rows[static_cast<std::size_t>(i)]) + first, count, of_row);
                kernels_.exp_sum(of_row, count, top[static_cast<std::size_t>(i)]);
                kernels_.divide(of_row, count, sum[static_cast<std::size_t>(i)], bf16_);
            });
            panels.pack(pool_, n, count, [&](std::int64_t i) { return p + i * count; });
            products_.times_rows(panels, count, table, first, to, first != 0);
        }
        for (std::int64_t i = 0; !all && i < n; ++i) {
            std::copy_n(to + i * out.cols, out.cols, row(out, rows[static_cast<std::size_t>(i)]));
        }
    }

    // out [places, outs]: each place's source(place) -> const float* [k] times its expert's matrix of the
    // bank.
    template <class Source>
    void multiply(const ExpertRows& sorted, const Weight& bank, std::int64_t k, Source source, float* out) {
        const WeightView& view = host(bank).view();
        std::vector<Panels*> panels;
        std::vector<Product> products;
        for (std::size_t g = 0; g < sorted.groups.size(); ++g) {
            panels.push_back(&products_.panels_for(view, g));
            products.push_back(
                {panels[g], &view, sorted.groups[g].expert, out + sorted.groups[g].first * rows_of(view)});
        }
        pool_.parallel_for(
            static_cast<std::int64_t>(panels.size()), 1, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t g = begin; g < end; ++g) {
                    const ExpertRows::Group& group = sorted.groups[static_cast<std::size_t>(g)];
                    panels[static_cast<std::size_t>(g)]->pack_here(
                        group.count, k, [&](std::int64_t r) { return source(group.first + r); });
                }
            });
        products_.run(products, bf16_);
    }

    // Row r's statistics from those of its slices, in their order.
    static void merge_stats(std::span<const SliceStats> slices, HostLogits& logits, std::int64_t r) {
        RowStats& s = logits.stats_of(r);
        logits.sum_of(r) = 0;
        s = {.finite = std::all_of(slices.begin(), slices.end(), [](const auto& p) { return p.finite; })};
        if (!s.finite) return;
        const auto best = std::max_element(slices.begin(), slices.end(),
                                           [](const auto& a, const auto& b) { return a.max < b.max; });
        s.max = best->max;
        float* zt = logits.zt(r) + (best - slices.begin()) * kHeadSlice;
        s.argmax = static_cast<std::int32_t>(std::find(zt, logits.zt(r) + logits.vocab(), s.max) -
                                             logits.zt(r));  // the lowest id on ties
        double sum = 0, weighted = 0;                        // of e^(z - max), and that times (z - max)
        for (const SliceStats& p : slices) {
            const double shift = static_cast<double>(p.max) - s.max;
            const double scale = std::exp(shift);
            sum += scale * p.sum;
            weighted += scale * (p.weighted + shift * p.sum);
        }
        logits.sum_of(r) = static_cast<float>(sum);
        s.log_sum_exp = static_cast<float>(s.max + std::log(sum));
        s.entropy = static_cast<float>(std::log(sum) - weighted / sum);
    }

    bool bf16_;
    ThreadPool pool_;
    const PlainKernels& kernels_;
    Products products_;
    Products exact_products_;         // without dot products
    std::array<Scratch, 2> scratch_;  // of the operation that runs; one runs at a time
    PassFacts facts_;
    float soft_cutoff_ = std::numeric_limits<float>::infinity();
};

}  // namespace

std::unique_ptr<Backend> make_plain_backend(Precision precision, int threads, std::string_view isa,
                                            bool pin) {
    const cpu::InstructionSet* set = cpu::instruction_set_named(isa);
    if (set == nullptr) return nullptr;
    const cpu::DotKernels* dots = precision == Precision::mixed ? set->dots : nullptr;
    return std::make_unique<PlainBackend>(precision, threads, pin, *set->plain, dots);
}

}  // namespace dgemma::backend
