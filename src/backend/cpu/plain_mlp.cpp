#include "backend/cpu/plain_mlp.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/plain_experts.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/weight_rows.h"

namespace dgemma::backend::cpu {

namespace {

// The MLP of a block of rows.
void gated_block(PlainMachine& m, std::span<const WeightView> w, const Mat& x, std::int64_t first,
                 std::int64_t count, const Mat& out) {
    const WeightView &gate = w[0], &up = w[1], &down = w[2];
    const std::int64_t width = rows_of(gate);
    const auto source = [&](std::int64_t r) { return row(x, first + r); };
    float* g = thread_scratch(3, 2 * count * width);
    float* u = g + count * width;
    const Panels* panels = &m.products.pack_here(gate, count, source);
    m.products.columns({panels, &gate, 0, g}, 0, width, m.bf16);
    if (m.products.operand_for(gate) != m.products.operand_for(up))
        panels = &m.products.pack_here(up, count, source);
    m.products.columns({panels, &up, 0, u}, 0, width, m.bf16);
    m.kernels.gelu_times(g, u, count * width, m.bf16);
    panels = &m.products.pack_here(down, count, [&](std::int64_t r) { return g + r * width; });
    m.products.columns({panels, &down, 0, row(out, first)}, 0, out.cols, m.bf16);
}

// Experts of a block of rows, one after the other: each row's choices are in ascending id, and are added in
// that order.
void experts_block(PlainMachine& m, std::span<const WeightView> w, const Mat& x, const Routing& routing,
                   std::int64_t first, std::int64_t count, const Mat& out) {
    const WeightView &gate_up = w[0], &down = w[1];
    const std::int64_t width = cols_of(down), hidden = x.cols, k = routing.ids.cols;
    const Routing part{{static_cast<std::int32_t*>(routing.ids.data) + first * k, count, k}, {}, {}};
    const ExpertRows sorted(part, gate_up.shape[0]);
    float* weights = row(routing.weights, first);
    std::fill_n(row(out, first), count * hidden, 0.0f);
    for (const ExpertRows::Group& g : sorted.groups) {
        const std::int64_t* pairs = sorted.pair_at.data() + g.first;
        float* gu = thread_scratch(3, g.count * 2 * width);
        float* y = thread_scratch(4, g.count * hidden);
        const Panels* panels = &m.products.pack_here(
            gate_up, g.count, [&](std::int64_t i) { return row(x, first + pairs[i] / k); });
        m.products.columns({panels, &gate_up, g.expert, gu}, 0, 2 * width, m.bf16);
        for (std::int64_t i = 0; i < g.count; ++i)
            m.kernels.gelu_times(gu + i * 2 * width, gu + i * 2 * width + width, width, m.bf16);
        panels = &m.products.pack_here(down, g.count, [&](std::int64_t i) { return gu + i * 2 * width; });
        m.products.columns({panels, &down, g.expert, y}, 0, hidden, m.bf16);
        for (std::int64_t i = 0; i < g.count; ++i)
            m.kernels.add_scaled(y + i * hidden, hidden, weights[pairs[i]], m.bf16,
                                 row(out, first + pairs[i] / k));
    }
}

// out [places, outs]: each place's source(place) -> const float* [k] times its expert's matrix of the bank.
template <class Source>
void multiply(PlainMachine& m, const ExpertRows& sorted, const WeightView& bank, Source source, float* out) {
    std::vector<Panels*> panels;
    std::vector<Product> products;
    for (std::size_t g = 0; g < sorted.groups.size(); ++g) {
        panels.push_back(&m.products.panels_for(bank, g));
        products.push_back(
            {panels[g], &bank, sorted.groups[g].expert, out + sorted.groups[g].first * rows_of(bank)});
    }
    m.pool.parallel_for(
        static_cast<std::int64_t>(panels.size()), 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t g = begin; g < end; ++g) {
                const ExpertRows::Group& group = sorted.groups[static_cast<std::size_t>(g)];
                panels[static_cast<std::size_t>(g)]->pack_here(
                    group.count, cols_of(bank), [&](std::int64_t r) { return source(group.first + r); });
            }
        });
    m.products.run(products, m.bf16);
}

}  // namespace

void gated_mlp(PlainMachine& m, const Mat& x, const WeightView& gate, const WeightView& up,
               const WeightView& down, const Mat& out) {
    const WeightView* weights[] = {&gate, &up, &down};
    if (m.products.in_blocks(x.rows, weights)) {
        for (const WeightView* w : weights) m.products.note_work(*w, x.rows);
        const std::span<const WeightView> tiles = m.products.as_tiles(weights);
        m.for_blocks(x.rows, [&](std::int64_t first, std::int64_t count) {
            gated_block(m, tiles, x, first, count, out);
        });
        return;
    }
    const std::int64_t width = rows_of(gate);
    float* g = m.scratch[0].floats(x.rows * width);
    float* u = m.scratch[1].floats(x.rows * width);
    const auto source = [&](std::int64_t r) { return row(x, r); };
    Panels& gate_x = m.products.panels_for(gate, 0);
    Panels& up_x = m.products.panels_for(up, 1);
    const bool shared = gate_x.operand() == up_x.operand();
    gate_x.pack(m.pool, x.rows, x.cols, source);
    if (!shared) up_x.pack(m.pool, x.rows, x.cols, source);
    const Product both[] = {{&gate_x, &gate, 0, g}, {shared ? &gate_x : &up_x, &up, 0, u}};
    m.products.run(both, m.bf16);
    m.for_rows(x.rows,
               [&](std::int64_t r) { m.kernels.gelu_times(g + r * width, u + r * width, width, m.bf16); });
    Panels& panels = m.products.panels_for(down);
    panels.pack(m.pool, x.rows, width, [&](std::int64_t r) { return g + r * width; });
    const Product last{&panels, &down, 0, f32(out)};
    m.products.run(std::span(&last, 1), m.bf16);
}

void route(PlainMachine& m, const Mat& h, const RouterWeights& w, const Routing& out) {
    const std::int64_t experts = w.proj->shape()[0];
    const float* scale = host(*w.scale).vector();
    const WeightView& proj = host(*w.proj).view();
    // a [count, H]: what the projection reads; z [count, E]: what it gives.
    const auto prepare = [&](std::int64_t first, std::int64_t count, float* a) {
        m.norm_group(row(h, first), nullptr, count, h.cols, w.eps, a);
        for (float* x = a; x < a + count * h.cols; x += h.cols)
            m.kernels.scale(x, scale, h.cols, 1.0f, m.bf16, x);
        m.kernels.scale(a, nullptr, count * h.cols, w.input_scale, m.bf16, a);
    };
    const auto choose = [&](std::int64_t r, float* z) {
        choose_experts(z, experts, host(*w.per_expert_scale).vector(), out.ids.cols,
                       static_cast<std::int32_t*>(out.ids.data) + r * out.ids.cols, row(out.weights, r));
        if (out.probabilities.data != nullptr) std::copy_n(z, experts, row(out.probabilities, r));
    };
    // Who gets a row must not hang on the rounding of a faster product.
    Products& products = m.exact_products;
    const WeightView* const weight = &proj;
    if (products.in_blocks(h.rows, std::span(&weight, 1))) {
        products.note_work(proj, h.rows);
        m.for_blocks(h.rows, [&](std::int64_t first, std::int64_t count) {
            float* a = thread_scratch(3, count * h.cols);
            float* z = thread_scratch(4, count * experts);
            for (std::int64_t r = 0; r < count; r += PlainMachine::kGroup)
                prepare(first + r, std::min(PlainMachine::kGroup, count - r), a + r * h.cols);
            const Panels& panels =
                products.pack_here(proj, count, [&](std::int64_t r) { return a + r * h.cols; });
            products.columns({&panels, &proj, 0, z}, 0, experts, m.bf16);
            for (std::int64_t r = 0; r < count; ++r) choose(first + r, z + r * experts);
        });
        return;
    }
    float* a = m.scratch[0].floats(h.rows * h.cols);
    float* z = m.scratch[1].floats(h.rows * experts);
    m.for_groups(h.rows,
                 [&](std::int64_t first, std::int64_t count) { prepare(first, count, a + first * h.cols); });
    Panels& panels = products.panels_for(proj);
    panels.pack(m.pool, h.rows, h.cols, [&](std::int64_t r) { return a + r * h.cols; });
    const Product product{&panels, &proj, 0, z};
    products.run(std::span(&product, 1), m.bf16);
    m.for_rows(h.rows, [&](std::int64_t r) { choose(r, z + r * experts); });
}

void experts(PlainMachine& m, const Mat& x, const Routing& routing, const WeightView& gate_up,
             const WeightView& down, const Mat& out) {
    const std::int64_t width = cols_of(down), hidden = x.cols, k = routing.ids.cols;
    const ExpertRows sorted(routing, gate_up.shape[0]);
    const auto touched = static_cast<std::int64_t>(sorted.groups.size());
    m.facts.fewest_experts =
        m.facts.fewest_experts == 0 ? touched : std::min(m.facts.fewest_experts, touched);
    for (const ExpertRows::Group& g : sorted.groups)
        m.facts.most_expert_rows = std::max(m.facts.most_expert_rows, g.count);
    const std::int64_t places = x.rows * k;

    const WeightView* weights[] = {&gate_up, &down};
    // An expert's rows of a block fill panels of their own.
    if (m.products.in_blocks(x.rows, weights) && places / gate_up.shape[0] >= 24 * m.pool.threads()) {
        for (const WeightView* w : weights) m.products.note_work(*w, places);
        const std::span<const WeightView> tiles = m.products.as_tiles(weights);
        m.for_blocks(x.rows, [&](std::int64_t first, std::int64_t count) {
            experts_block(m, tiles, x, routing, first, count, out);
        });
        return;
    }

    float* gu = m.scratch[0].floats(places * 2 * width);
    float* y = m.scratch[1].floats(places * hidden);
    multiply(
        m, sorted, gate_up,
        [&](std::int64_t p) { return row(x, sorted.pair_at[static_cast<std::size_t>(p)] / k); }, gu);
    m.for_rows(places, [&](std::int64_t p) {
        float* gate = gu + p * 2 * width;
        m.kernels.gelu_times(gate, gate + width, width, m.bf16);
    });
    multiply(
        m, sorted, down, [&](std::int64_t p) { return gu + p * 2 * width; }, y);

    // Back to the rows: each row's choices stand in ascending id, and are added in that order.
    m.for_rows(x.rows, [&](std::int64_t r) {
        float* to = row(out, r);
        std::fill_n(to, hidden, 0.0f);
        for (std::int64_t i = 0; i < k; ++i) {
            const float* from = y + sorted.place_of[static_cast<std::size_t>(r * k + i)] * hidden;
            m.kernels.add_scaled(from, hidden, row(routing.weights, r)[i], m.bf16, to);
        }
    });
}

}  // namespace dgemma::backend::cpu
