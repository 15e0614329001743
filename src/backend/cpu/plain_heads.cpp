#include "backend/cpu/plain_heads.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/rows.h"
#include "backend/cpu/weight_rows.h"

namespace dgemma::backend::cpu {

const float* RotaryAngles::of(PlainMachine& m, std::span<const float> frequencies,
                              std::span<const std::int32_t> positions) {
    constexpr std::size_t most = 4;
    auto table = std::find_if(tables_.begin(), tables_.end(), [&](const Table& t) {
        return std::equal(frequencies.begin(), frequencies.end(), t.frequencies.begin(), t.frequencies.end());
    });
    if (table == tables_.end()) {
        if (tables_.size() < most) {
            table = tables_.emplace(tables_.end());
        } else {
            table = tables_.begin() + static_cast<std::ptrdiff_t>(next_++ % most);
            table->positions.clear();
        }
        table->frequencies.assign(frequencies.begin(), frequencies.end());
    }
    if (std::equal(positions.begin(), positions.end(), table->positions.begin(), table->positions.end()))
        return table->values.data();
    table->positions.assign(positions.begin(), positions.end());
    const auto half = static_cast<std::int64_t>(frequencies.size());
    const auto rows = static_cast<std::int64_t>(positions.size());
    float* values = table->values.floats(rows * 2 * half);
    m.for_rows(rows, [&](std::int64_t r) {
        float* c = values + r * 2 * half;
        float* s = c + half;
        for (std::int64_t d = 0; d < half; ++d) {
            const float angle = static_cast<float>(positions[static_cast<std::size_t>(r)]) *
                                frequencies[static_cast<std::size_t>(d)];
            c[d] = rounded(std::cos(angle), m.bf16);
            s[d] = rounded(std::sin(angle), m.bf16);
        }
    });
    return values;
}

namespace {

// The heads of one row in place; weight null: without one; angles null: not rotated.
void norm_row_of_heads(const PlainMachine& m, float* x, std::int64_t cols, std::int64_t head_dim,
                       const float* weight, float eps, const float* angles) {
    constexpr std::int64_t group = PlainMachine::kGroup;
    for (std::int64_t c = 0; c < cols; c += group * head_dim)
        m.norm_group(x + c, weight, std::min(group, (cols - c) / head_dim), head_dim, eps, x + c);
    for (std::int64_t c = 0; angles != nullptr && c < cols; c += head_dim)
        m.kernels.rotate(x + c, head_dim / 2, angles, angles + head_dim / 2, m.bf16);
}

const float* vector_of(const Weight* weight) { return weight == nullptr ? nullptr : host(*weight).vector(); }

}  // namespace

void norm_heads(PlainMachine& m, RotaryAngles& angles, const Mat& x, int head_dim, const Weight* weight,
                float eps, const Weight* frequencies, std::span<const std::int32_t> positions) {
    const float* turns = nullptr;
    if (frequencies != nullptr) {
        turns = angles.of(m, {vector_of(frequencies), static_cast<std::size_t>(head_dim / 2)}, positions);
    }
    m.for_rows(x.rows, [&](std::int64_t r) {
        norm_row_of_heads(m, row(x, r), x.cols, head_dim, vector_of(weight), eps,
                          turns == nullptr ? nullptr : turns + r * head_dim);
    });
}

void attention_inputs(PlainMachine& m, RotaryAngles& angles, const AttentionInputs& a) {
    const std::int64_t d = a.head_dim;
    const float* turns =
        angles.of(m, {vector_of(a.frequencies), static_cast<std::size_t>(d / 2)}, a.positions);
    std::vector<const WeightView*> weights = {&host(*a.q_proj).view(), &host(*a.k_proj).view()};
    std::vector<const Mat*> outs = {&a.q, &a.k};
    if (a.v_proj != nullptr) {
        weights.push_back(&host(*a.v_proj).view());
        outs.push_back(&a.v);
    }
    const auto finish = [&](std::int64_t r) {
        if (a.v_proj == nullptr) std::copy_n(row(a.k, r), a.k.cols, row(a.v, r));
        norm_row_of_heads(m, row(a.q, r), a.q.cols, d, vector_of(a.q_norm), a.eps, turns + r * d);
        norm_row_of_heads(m, row(a.k, r), a.k.cols, d, vector_of(a.k_norm), a.eps, turns + r * d);
        norm_row_of_heads(m, row(a.v, r), a.v.cols, d, nullptr, a.eps, nullptr);
    };
    if (m.products.in_blocks(a.x.rows, weights)) {
        for (const WeightView* w : weights) m.products.note_work(*w, a.x.rows);
        const std::span<const WeightView> tiles = m.products.as_tiles(weights);
        m.for_blocks(a.x.rows, [&](std::int64_t first, std::int64_t count) {
            const Panels* panels = nullptr;
            for (std::size_t i = 0; i < tiles.size(); ++i) {
                if (panels == nullptr || panels->operand() != m.products.operand_for(tiles[i]))
                    panels = &m.products.pack_here(tiles[i], count,
                                                   [&](std::int64_t r) { return row(a.x, first + r); });
                m.products.columns({panels, &tiles[i], 0, row(*outs[i], first)}, 0, outs[i]->cols, m.bf16);
            }
            for (std::int64_t r = first; r < first + count; ++r) finish(r);
        });
        return;
    }
    std::vector<Product> products;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const Operand operand = m.products.operand_for(*weights[i]);
        const auto alike = std::find_if(products.begin(), products.end(),
                                        [&](const Product& p) { return p.x->operand() == operand; });
        if (alike != products.end()) {
            products.push_back({alike->x, weights[i], 0, f32(*outs[i])});
            continue;
        }
        Panels& panels = m.products.panels_for(*weights[i], i);
        panels.pack(m.pool, a.x.rows, a.x.cols, [&](std::int64_t r) { return row(a.x, r); });
        products.push_back({&panels, weights[i], 0, f32(*outs[i])});
    }
    m.products.run(products, m.bf16);
    m.for_rows(a.x.rows, finish);
}

}  // namespace dgemma::backend::cpu
