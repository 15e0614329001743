// Attention by dot products of bf16: keys and values are read where the cache holds them and interleaved
// block by block for the instruction, never widened.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "backend/cpu/plain_attention.h"
#include "backend/cpu/rows.h"

namespace dgemma::backend::cpu {

void attend_in_bf16(const AttentionArgs& a, const QueryBlock& q, const OwnKeys& own,
                    const KernelTables& kernels) {
    const DotKernels& dots = *kernels.dots;
    const std::int64_t d = a.head_dim;
    const std::int64_t group = a.heads / a.kv_heads;
    const std::int64_t m =
        q.count * group;  // query i: row first + i / group, head kv_head * group + i % group
    const std::vector<KeyBlock> blocks = blocks_of(a, q, own);
    const std::int64_t columns = static_cast<std::int64_t>(blocks.size()) * page_tokens;
    const auto head_of = [&](const Mat& x, std::int64_t i) {
        return row(x, q.first + i / group) + (q.kv_head * group + i % group) * d;
    };
    float* scores = thread_scratch(1, m * columns);
    auto* tile =
        reinterpret_cast<std::uint32_t*>(thread_scratch(2, std::max(d, page_tokens) / 2 * kTileRows));
    auto* seen = reinterpret_cast<std::uint16_t*>(thread_scratch(3, page_tokens * d / 2));
    float* sums = thread_scratch(4, m * d);
    const auto for_panels = [&](const Panels& panels, auto f) {
        for (std::int64_t p = 0; p < panels.panels(); ++p) {
            const std::int64_t first = panels.first_row(p);
            f(static_cast<int>(panels.first_row(p + 1) - first), panels.pairs(p), first);
        }
    };

    thread_local Panels queries, weights;
    queries.become(kernels, Operand::bf16);
    queries.pack_here(m, d, [&](std::int64_t i) { return head_of(a.q, i); });
    for (std::size_t n = 0; n < blocks.size(); ++n) {
        const KeyBlock& b = blocks[n];
        // What a key nobody wrote gives in its own column, `weigh` does away with.
        for (std::int64_t t = 0; t < b.end; t += kTileRows) {
            const auto* keys = static_cast<const std::byte*>(b.keys) + t * b.stride * 2;
            dots.interleave_rows(keys, b.stride,
                                 static_cast<int>(std::max<std::int64_t>(0, t + kTileRows - b.slots)), d / 2,
                                 tile);
            for_panels(queries, [&](int rows, const std::uint32_t* x, std::int64_t first) {
                float* to = scores + first * columns + static_cast<std::int64_t>(n) * page_tokens + t;
                dots.bf16(rows, d / 2, x, tile, to, columns, false);
            });
        }
    }

    weigh(a, q, blocks, *kernels.plain, false, scores);

    weights.become(kernels, Operand::bf16);
    for (std::size_t n = 0; n < blocks.size(); ++n) {
        const KeyBlock& b = blocks[n];
        weights.pack_here(m, page_tokens, [&](std::int64_t i) {
            return scores + i * columns + static_cast<std::int64_t>(n) * page_tokens;
        });
        const auto* values = static_cast<const std::byte*>(b.values);
        std::int64_t stride = b.stride;
        if (b.begin > 0 || b.end < page_tokens) {
            // A weight of zero does not undo a NaN in a slot that nobody wrote.
            std::fill_n(seen, page_tokens * d, std::uint16_t{0});
            for (std::int64_t i = b.begin; i < b.end; ++i)
                std::memcpy(seen + i * d, values + i * b.stride * 2, static_cast<std::size_t>(d) * 2);
            values = reinterpret_cast<const std::byte*>(seen);
            stride = d;
        }
        for (std::int64_t c = 0; c < d; c += kTileRows) {
            dots.interleave_columns(values + c * 2, stride, page_tokens / 2, tile);
            for_panels(weights, [&](int rows, const std::uint32_t* x, std::int64_t first) {
                dots.bf16(rows, page_tokens / 2, x, tile, sums + first * d + c, d, n > 0);
            });
        }
    }
    for (std::int64_t i = 0; i < m; ++i) std::copy_n(sums + i * d, d, head_of(a.out, i));
}

}  // namespace dgemma::backend::cpu
