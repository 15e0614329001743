#include "backend/cpu/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu.h"
#include "backend/cpu/rows.h"

namespace dgemma::backend::cpu {

std::vector<KeyBlock> blocks_of(const AttentionArgs& a, const QueryBlock& q, const OwnKeys& own) {
    const AttentionSegment& s = *q.segment;
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    for (std::int64_t r = q.first; r < q.first + q.count; ++r) {
        begin = std::min<std::int64_t>(begin, a.key_begin[static_cast<std::size_t>(r)]);
        end = std::max<std::int64_t>(end, a.key_end[static_cast<std::size_t>(r)]);
    }
    const std::int64_t d = a.head_dim;
    const std::int64_t cached_end = s.canvas_position < 0 ? end : std::min(end, s.canvas_position);
    std::vector<KeyBlock> blocks;
    for (std::int64_t p = begin / page_tokens * page_tokens; p < cached_end; p += page_tokens) {
        const std::int64_t slot = p % s.cache.capacity;
        const auto page = static_cast<std::size_t>(slot / page_tokens);
        const std::size_t offset =
            static_cast<std::size_t>(q.kv_head * page_tokens * d) * size_of(s.cache.type);
        blocks.push_back({p, std::max<std::int64_t>(begin - p, 0), std::min(cached_end - p, page_tokens),
                          page_tokens, static_cast<const std::byte*>(s.cache.keys[page]) + offset,
                          static_cast<const std::byte*>(s.cache.values[page]) + offset, s.cache.type, d});
    }
    for (std::int64_t p = s.canvas_position; s.canvas_position >= 0 && p < end; p += page_tokens) {
        const std::int64_t first = (s.first_row + p - s.canvas_position) * a.k.cols + q.kv_head * d;
        const auto at = [&](const void* rows) {
            return static_cast<const std::byte*>(rows) + static_cast<std::size_t>(first) * size_of(own.type);
        };
        blocks.push_back({p, 0, std::min(end - p, page_tokens),
                          std::min(s.canvas_position + s.rows - p, page_tokens), at(own.keys), at(own.values),
                          own.type, a.k.cols});
    }
    return blocks;
}

void weigh(const AttentionArgs& a, const QueryBlock& q, const std::vector<KeyBlock>& blocks,
           const PlainKernels& kernels, bool bf16, float* scores) {
    const std::int64_t group = a.heads / a.kv_heads;
    const std::int64_t columns = static_cast<std::int64_t>(blocks.size()) * page_tokens;
    constexpr float unseen = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < q.count * group; ++i) {
        const auto r = static_cast<std::size_t>(q.first + i / group);
        float* s = scores + i * columns;
        if (bf16) kernels.round(s, columns);
        for (std::size_t n = 0; n < blocks.size(); ++n) {
            const std::int64_t from =
                std::clamp<std::int64_t>(a.key_begin[r] - blocks[n].position, 0, page_tokens);
            const std::int64_t to = std::clamp<std::int64_t>(
                std::min<std::int64_t>(a.key_end[r] - blocks[n].position, blocks[n].end), 0, page_tokens);
            float* block = s + static_cast<std::int64_t>(n) * page_tokens;
            std::fill(block, block + std::min(from, page_tokens), unseen);
            std::fill(block + std::max(from, to), block + page_tokens, unseen);
        }
        const float sum = kernels.exp_sum(s, columns, kernels.max(s, columns));
        kernels.divide(s, columns, sum, bf16);
    }
}

namespace {

// The used slots of a block as f32, [slot][d].
void load_slots(const KeyBlock& b, const void* from, std::int64_t d, float* to) {
    for (std::int64_t i = b.begin; i < b.end; ++i) {
        if (b.type == Dtype::bf16) {
            const auto* source = static_cast<const std::uint16_t*>(from) + i * b.stride;
            for (std::int64_t c = 0; c < d; ++c) to[i * d + c] = bf16_to_f32(source[c]);
        } else if (b.type == Dtype::f16) {
            const auto* source = static_cast<const std::uint16_t*>(from) + i * b.stride;
            for (std::int64_t c = 0; c < d; ++c) to[i * d + c] = f16_to_f32(source[c]);
        } else {
            std::copy_n(static_cast<const float*>(from) + i * b.stride, d, to + i * d);
        }
    }
}

void attend_in_f32(const AttentionArgs& a, const QueryBlock& q, const OwnKeys& own,
                   const PlainKernels& kernels, bool bf16) {
    const std::int64_t d = a.head_dim;
    const std::int64_t group = a.heads / a.kv_heads;
    const std::int64_t m =
        q.count * group;  // query i: row first + i / group, head kv_head * group + i % group
    const std::vector<KeyBlock> blocks = blocks_of(a, q, own);
    const std::int64_t columns = static_cast<std::int64_t>(blocks.size()) * page_tokens;
    const std::int64_t height = kernels.rows;
    const std::int64_t width = kernels.cols;
    const std::int64_t padded = (m + height - 1) / height * height;
    const std::int64_t d_padded = (d + width - 1) / width * width;
    const auto head_of = [&](const Mat& x, std::int64_t i) {
        return row(x, q.first + i / group) + (q.kv_head * group + i % group) * d;
    };

    float* panels = thread_scratch(0, padded * std::max(d, page_tokens));
    float* scores = thread_scratch(1, padded * columns);
    float* loaded = thread_scratch(2, page_tokens * d);
    float* tile = thread_scratch(3, std::max(d * width, page_tokens * d_padded));
    float* sums = thread_scratch(4, padded * d_padded);
    const auto pack = [&](std::int64_t k,
                          auto source) {  // panels [k][height] of the rows source(i), [k] each
        for (std::int64_t i = 0; i < padded; ++i) {
            float* panel = panels + i / height * height * k + i % height;
            const float* from = i < m ? source(i) : nullptr;
            for (std::int64_t c = 0; c < k; ++c) panel[c * height] = from != nullptr ? from[c] : 0.0f;
        }
    };

    pack(d, [&](std::int64_t i) { return head_of(a.q, i); });
    for (std::size_t n = 0; n < blocks.size(); ++n) {
        const KeyBlock& b = blocks[n];
        load_slots(b, b.keys, d, loaded);
        for (std::int64_t t = 0; t < page_tokens; t += width) {
            for (std::int64_t j = 0; j < width; ++j) {
                const bool used = t + j >= b.begin && t + j < b.end;
                for (std::int64_t c = 0; c < d; ++c)
                    tile[c * width + j] = used ? loaded[(t + j) * d + c] : 0.0f;
            }
            for (std::int64_t i = 0; i < padded; i += height) {
                kernels.tile(d, panels + i * d, tile, width,
                             scores + i * columns + static_cast<std::int64_t>(n) * page_tokens + t, columns,
                             false);
            }
        }
    }

    weigh(a, q, blocks, kernels, bf16, scores);

    std::fill_n(sums, padded * d_padded, 0.0f);
    for (std::size_t n = 0; n < blocks.size(); ++n) {
        const KeyBlock& b = blocks[n];
        load_slots(b, b.values, d, loaded);
        const std::int64_t used = b.end - b.begin;
        pack(used, [&](std::int64_t i) {
            return scores + i * columns + static_cast<std::int64_t>(n) * page_tokens + b.begin;
        });
        for (std::int64_t c = 0; c < d_padded; c += width) {
            const float* values = loaded + b.begin * d + c;
            std::int64_t stride = d;
            if (c + width > d) {  // the last columns of a head that is no multiple of the tile
                for (std::int64_t j = 0; j < used; ++j) {
                    std::copy_n(values + j * d, d - c, tile + j * width);
                    std::fill_n(tile + j * width + d - c, width - (d - c), 0.0f);
                }
                values = tile;
                stride = width;
            }
            for (std::int64_t i = 0; i < padded; i += height) {
                kernels.tile(used, panels + i * used, values, stride, sums + i * d_padded + c, d_padded,
                             true);
            }
        }
    }
    for (std::int64_t i = 0; i < m; ++i) {
        float* to = head_of(a.out, i);
        std::copy_n(sums + i * d_padded, d, to);
        if (bf16) kernels.round(to, d);
    }
}

}  // namespace

namespace {

// Rows of a segment that share a block: the more, the less often its keys are loaded; but their scores should
// stay in a core's second cache, and every thread should have its share of the blocks.
std::int64_t most_block_rows(const AttentionArgs& args, const AttentionSegment& s, std::int64_t threads) {
    constexpr std::int64_t fewest = 48, most = 256, scores = 1 << 16;  // queries, and numbers
    const std::int64_t group = args.heads / args.kv_heads;
    const auto begin = static_cast<std::size_t>(s.first_row);
    const auto end = begin + static_cast<std::size_t>(s.rows);
    std::int64_t keys = 1;
    for (std::size_t r = begin; r < end; ++r)
        keys = std::max<std::int64_t>(keys, args.key_end[r] - args.key_begin[r]);
    const std::int64_t share = args.q.rows * args.heads / (2 * threads);
    return std::max<std::int64_t>(1, std::clamp(std::min(scores / keys, share), fewest, most) / group);
}

}  // namespace

bool attends_in_bf16(const AttentionArgs& args, const KernelTables& kernels) {
    if (kernels.dots == nullptr || kernels.dots->bf16 == nullptr || args.head_dim % kTileRows != 0)
        return false;
    return std::all_of(args.segments.begin(), args.segments.end(),
                       [](const AttentionSegment& s) { return s.cache.type == Dtype::bf16; });
}

void plain_attention(const AttentionArgs& args, const KernelTables& kernels, ThreadPool& pool,
                     Scratch& scratch, bool bf16) {
    std::vector<QueryBlock> work;
    bool canvas = false;
    for (const AttentionSegment& s : args.segments) {
        canvas = canvas || s.canvas_position >= 0;
        const std::int64_t most = most_block_rows(args, s, pool.threads());
        const std::int64_t blocks = (s.rows + most - 1) / most;
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t first = b * s.rows / blocks;
            for (int h = 0; h < args.kv_heads; ++h)
                work.push_back({&s, h, s.first_row + first, (b + 1) * s.rows / blocks - first});
        }
    }
    const bool dots = attends_in_bf16(args, kernels);
    OwnKeys own{args.k.data, args.v.data, Dtype::f32};
    if (dots && canvas) {
        const std::int64_t n = args.k.rows * args.k.cols;
        auto* rounded = reinterpret_cast<std::uint16_t*>(scratch.floats(n));
        pool.parallel_for(args.k.rows, 16, [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t first = begin * args.k.cols, count = (end - begin) * args.k.cols;
            kernels.plain->to_bf16(f32(args.k) + first, count, rounded + first);
            kernels.plain->to_bf16(f32(args.v) + first, count, rounded + n + first);
        });
        own = {rounded, rounded + n, Dtype::bf16};
    }
    pool.parallel_for(static_cast<std::int64_t>(work.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const QueryBlock& queries = work[static_cast<std::size_t>(i)];
            if (dots) {
                attend_in_bf16(args, queries, own, kernels);
            } else {
                attend_in_f32(args, queries, own, *kernels.plain, bf16);
            }
        }
    });
}

}  // namespace dgemma::backend::cpu
