#include "backend/cpu/plain_head.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/cpu/weight_rows.h"

namespace dgemma::backend::cpu {

namespace {

constexpr std::int64_t kHeadSlice = 256;  // of the vocabulary; a multiple of every tile's width

// Row r's statistics from those of its slices, in their order.
void merge_stats(std::span<const SliceStats> slices, HostLogits& logits, std::int64_t r) {
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

// A slice of the vocabulary for some rows: cap and statistics find it in the cache. z: of row 0, kHeadSlice
// from row to row; stats: of row 0's slice, `slices` from row to row.
struct Slice {
    std::int64_t first = 0, count = 0;  // outputs
};
void finish_slice(const PlainMachine& m, const HeadArgs& a, const HeadArgs::Canvas& canvas, Slice slice,
                  float* z, std::int64_t first_row, std::int64_t rows, SliceStats* stats,
                  std::int64_t slices) {
    auto& logits = static_cast<HostLogits&>(*canvas.logits);
    for (std::int64_t r = 0; r < rows; ++r, z += kHeadSlice)
        stats[r * slices] = m.kernels.softcap(z, slice.count, a.softcap, canvas.temperature,
                                              logits.zt(first_row + r) + slice.first);
}

// The largest entry of a row: the head has seen it, unless the row came from elsewhere.
float largest(const PlainMachine& m, HostLogits& logits, std::int64_t r) {
    return logits.sum_of(r) > 0 ? logits.stats_of(r).max : m.kernels.max(logits.zt(r), logits.vocab());
}

// Rows with few enough entries within the cutoff: the sum over those, in ascending id. Marks the rows it did.
void soft_embed_peaked(PlainMachine& m, HostLogits& logits, const WeightView& table, float cutoff,
                       const Mat& out, std::span<std::uint8_t> done) {
    const std::int64_t vocab = logits.vocab();
    const std::int64_t most = vocab / 16;  // beyond it the dense product is the faster way
    std::vector<std::int64_t> entries(done.size());
    m.pool.parallel_for(out.rows, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::int32_t> ids;
        std::vector<float> p;
        for (std::int64_t r = begin; r < end; ++r) {
            const float* zt = logits.zt(r);
            const float top = largest(m, logits, r);
            ids.clear();
            p.clear();
            for (std::int64_t i = 0; i < vocab && static_cast<std::int64_t>(ids.size()) <= most; ++i) {
                if (zt[i] < top - cutoff) continue;
                ids.push_back(static_cast<std::int32_t>(i));
                p.push_back(zt[i]);
            }
            if (static_cast<std::int64_t>(ids.size()) > most) continue;
            const auto count = static_cast<std::int64_t>(p.size());
            m.kernels.divide(p.data(), count, m.kernels.exp_sum(p.data(), count, top), m.bf16);
            float* e = thread_scratch(0, out.cols);
            std::fill_n(row(out, r), out.cols, 0.0f);
            for (std::size_t i = 0; i < ids.size(); ++i) {
                load_row(table, ids[i], e);
                m.kernels.add_scaled(e, out.cols, p[i], false, row(out, r));
            }
            entries[static_cast<std::size_t>(r)] = count;
            done[static_cast<std::size_t>(r)] = 1;
        }
    });
    for (std::size_t r = 0; r < done.size(); ++r) {
        m.facts.soft_rows += done[r];
        m.facts.soft_entries += entries[r];
    }
}

// The sum over the whole vocabulary for the rows named, in slices: probabilities of a slice for all rows,
// then their share of the product.
void soft_embed_whole(PlainMachine& m, HostLogits& logits, const WeightView& table,
                      std::span<const std::int64_t> rows, const Mat& out) {
    if (rows.empty()) return;
    const std::int64_t vocab = logits.vocab();
    const auto n = static_cast<std::int64_t>(rows.size());
    m.facts.soft_rows += n;
    m.facts.soft_entries += n * vocab;
    std::vector<float> top(rows.size()), sum(rows.size());
    m.for_rows(n, [&](std::int64_t i) {
        const std::int64_t r = rows[static_cast<std::size_t>(i)];
        float& own = sum[static_cast<std::size_t>(i)];
        top[static_cast<std::size_t>(i)] = largest(m, logits, r);
        own = logits.sum_of(r);
        if (own == 0) own = m.kernels.sum_exp(logits.zt(r), vocab, top[static_cast<std::size_t>(i)]);
    });
    const bool all = n == out.rows;
    if (all && m.products.in_blocks_of_columns(n, table)) {
        m.products.note_columns(table, n);
        const std::uint32_t* tiles = m.products.columns_as_tiles(table);
        m.for_blocks(n, [&](std::int64_t first_row, std::int64_t count) {
            float* p = thread_scratch(3, count * kHeadSlice);
            for (std::int64_t first = 0; first < vocab; first += kHeadSlice) {
                const std::int64_t entries = std::min(kHeadSlice, vocab - first);
                for (std::int64_t i = 0; i < count; ++i) {
                    const std::int64_t r = first_row + i;
                    const auto at = static_cast<std::size_t>(r);
                    m.kernels.softmax(logits.zt(r) + first, entries, top[at], sum[at], m.bf16,
                                      p + i * entries);
                }
                const Panels& panels = m.products.pack_here(table, count, entries,
                                                            [&](std::int64_t i) { return p + i * entries; });
                m.products.times_tiles(panels, entries, table, tiles, first, row(out, first_row), first != 0);
            }
        });
        return;
    }
    float* to = all ? f32(out) : m.scratch[0].floats(n * out.cols);
    constexpr std::int64_t slice = 1024;
    Panels& panels = vocab % 2 == 0 ? m.products.panels_for(table) : m.exact_products.panels_for(table);
    float* p = m.scratch[1].floats(n * slice);
    for (std::int64_t first = 0; first < vocab; first += slice) {
        const std::int64_t count = std::min(slice, vocab - first);
        m.for_rows(n, [&](std::int64_t i) {
            const auto at = static_cast<std::size_t>(i);
            m.kernels.softmax(logits.zt(rows[at]) + first, count, top[at], sum[at], m.bf16, p + i * count);
        });
        panels.pack(m.pool, n, count, [&](std::int64_t i) { return p + i * count; });
        m.products.times_rows(panels, count, table, first, to, first != 0);
    }
    for (std::int64_t i = 0; !all && i < n; ++i)
        std::copy_n(to + i * out.cols, out.cols, row(out, rows[static_cast<std::size_t>(i)]));
}

}  // namespace

void head(PlainMachine& m, const HeadArgs& a) {
    const WeightView& table = host(*a.table).view();
    const std::int64_t vocab = rows_of(table);
    const std::int64_t slices = (vocab + kHeadSlice - 1) / kHeadSlice;
    const auto slice_at = [&](std::int64_t s) {
        return Slice{s * kHeadSlice, std::min(kHeadSlice, vocab - s * kHeadSlice)};
    };
    const WeightView* const weight = &table;
    if (m.products.in_blocks(a.x.rows, std::span(&weight, 1))) {
        const WeightView& tiles = m.products.as_tiles(std::span(&weight, 1))[0];
        m.products.note_work(table, a.x.rows);
        // Blocks of one canvas each.
        struct Block {
            const HeadArgs::Canvas* canvas;
            std::int64_t first, rows;
        };
        std::vector<Block> blocks;
        for (const HeadArgs::Canvas& canvas : a.canvases) {
            constexpr std::int64_t most = 64;
            const std::int64_t parts = (canvas.rows + most - 1) / most;
            for (std::int64_t p = 0; p < parts; ++p) {
                const std::int64_t first = p * canvas.rows / parts;
                blocks.push_back({&canvas, first, (p + 1) * canvas.rows / parts - first});
            }
        }
        m.pool.parallel_for(
            static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) {
                    const Block& b = blocks[static_cast<std::size_t>(i)];
                    const Panels& panels = m.products.pack_here(table, b.rows, [&](std::int64_t r) {
                        return row(a.x, b.canvas->first_row + b.first + r);
                    });
                    Product part{&panels, &tiles, 0, thread_scratch(3, b.rows * kHeadSlice), kHeadSlice};
                    std::vector<SliceStats> stats(static_cast<std::size_t>(b.rows * slices));
                    for (std::int64_t s = 0; s < slices; ++s) {
                        const Slice slice = slice_at(s);
                        m.products.columns(part, slice.first, slice.first + slice.count, m.bf16);
                        finish_slice(m, a, *b.canvas, slice, part.out, b.first, b.rows, stats.data() + s,
                                     slices);
                    }
                    auto& logits = static_cast<HostLogits&>(*b.canvas->logits);
                    for (std::int64_t r = 0; r < b.rows; ++r)
                        merge_stats(std::span(stats).subspan(static_cast<std::size_t>(r * slices),
                                                             static_cast<std::size_t>(slices)),
                                    logits, b.first + r);
                }
            });
        return;
    }
    Panels& panels = m.products.panels_for(table);
    for (const HeadArgs::Canvas& canvas : a.canvases) {
        auto& logits = static_cast<HostLogits&>(*canvas.logits);
        panels.pack(m.pool, canvas.rows, a.x.cols,
                    [&](std::int64_t r) { return row(a.x, canvas.first_row + r); });
        const Product product{&panels, &table, 0, nullptr, kHeadSlice};
        m.products.note_work(product);
        std::vector<SliceStats> stats(static_cast<std::size_t>(canvas.rows * slices));
        m.pool.parallel_for(slices, 1, [&](std::int64_t begin, std::int64_t end) {
            Product part = product;
            part.out = thread_scratch(3, canvas.rows * kHeadSlice);
            for (std::int64_t s = begin; s < end; ++s) {
                const Slice slice = slice_at(s);
                m.products.columns(part, slice.first, slice.first + slice.count, m.bf16);
                finish_slice(m, a, canvas, slice, part.out, 0, canvas.rows, stats.data() + s, slices);
            }
        });
        m.for_rows(canvas.rows, [&](std::int64_t r) {
            merge_stats(std::span(stats).subspan(static_cast<std::size_t>(r * slices),
                                                 static_cast<std::size_t>(slices)),
                        logits, r);
        });
    }
}

void soft_embed(PlainMachine& m, HostLogits& logits, const WeightView& table, float scale, float cutoff,
                const Mat& out) {
    // The model gets bf16(z / T), and nobody else reads it again.
    if (m.bf16) {
        m.for_rows(out.rows, [&](std::int64_t r) {
            m.kernels.round(logits.zt(r), logits.vocab());
            logits.sum_of(r) = 0;
        });
    }
    std::vector<std::uint8_t> peaked(static_cast<std::size_t>(out.rows));
    if (std::isfinite(cutoff)) soft_embed_peaked(m, logits, table, cutoff, out, peaked);
    std::vector<std::int64_t> others;
    for (std::int64_t r = 0; r < out.rows; ++r) {
        if (peaked[static_cast<std::size_t>(r)] == 0) others.push_back(r);
    }
    soft_embed_whole(m, logits, table, others, out);
    m.for_rows(out.rows, [&](std::int64_t r) {
        if (m.bf16) m.kernels.round(row(out, r), out.cols);
        m.kernels.scale(row(out, r), nullptr, out.cols, scale, m.bf16, row(out, r));
    });
}

}  // namespace dgemma::backend::cpu
