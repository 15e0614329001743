// Attention of the plain backend: for a block of queries that share a kv head, all scores, their softmax, and
// the weighted values. Keys are walked in blocks aligned to their absolute position (the canvas's own to its
// start), so that a query meets its keys in the same order and lanes wherever a prefill was cut.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/plain_products.h"
#include "base/thread_pool.h"

namespace dgemma::backend::cpu {

// Keys and values are multiplied in f32, or, where the tables have dot products of bf16 and the cache is kept
// in it, in bf16: queries and weights are rounded to it then, and the canvas's own keys and values too.
[[nodiscard]] bool attends_in_bf16(const AttentionArgs& args, const KernelTables& kernels);
void plain_attention(const AttentionArgs& args, const KernelTables& kernels, ThreadPool& pool,
                     Scratch& scratch, bool bf16);

// The keys and values of one kv head at page_tokens consecutive positions.
struct KeyBlock {
    std::int64_t position = 0;        // of slot 0
    std::int64_t begin = 0, end = 0;  // slots that some query sees; the others may never have been written
    std::int64_t slots = 0;           // that there is memory for
    const void* keys = nullptr;       // of slot 0
    const void* values = nullptr;
    Dtype type = Dtype::f32;
    std::int64_t stride = 0;  // elements from one slot to the next
};

// Queries [first, first + count) of one segment and the query heads of one kv head.
struct QueryBlock {
    const AttentionSegment* segment = nullptr;
    std::int64_t kv_head = 0;
    std::int64_t first = 0, count = 0;
};

// The canvas's own keys and values, [rows, kv_heads * head_dim].
struct OwnKeys {
    const void* keys = nullptr;
    const void* values = nullptr;
    Dtype type = Dtype::f32;
};

// All keys that some query of the block sees, ascending.
std::vector<KeyBlock> blocks_of(const AttentionArgs& args, const QueryBlock& queries, const OwnKeys& own);

// scores [count * group, blocks * page_tokens] -> their softmax over what each query sees, zero elsewhere.
void weigh(const AttentionArgs& args, const QueryBlock& queries, const std::vector<KeyBlock>& blocks,
           const PlainKernels& kernels, bool bf16, float* scores);

// One block of queries by dot products of bf16.
void attend_in_bf16(const AttentionArgs& args, const QueryBlock& queries, const OwnKeys& own,
                    const KernelTables& kernels);

}  // namespace dgemma::backend::cpu
