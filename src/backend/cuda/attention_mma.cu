// Attention in bf16 on the matrix units of compute capability 8.0, keys and values read where the cache's
// pages lie.
//
// A block takes 64 query rows that share a key head (the rows of its query heads packed, row by row) and
// walks their keys in tiles at multiples of the tile from position 0: which tiles a row meets, and in what
// order, depends on that row's keys alone, and a tile of keys it must not see leaves its sums as they were.
// The keys of a canvas are cut in two for two blocks; where the cut falls depends on the canvas's context
// alone.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int rows_of_block = 64;
constexpr int threads = 256;  // eight warps: four groups of 16 rows, two halves of the keys or columns
constexpr int pad = 8;
constexpr int canvas_splits = 2;
constexpr int least_split_keys = 256;  // fewer keys are not cut

template <int Dim, int Keys>
struct Shared {
    bf16 q[rows_of_block][Dim + pad];
    bf16 k[Keys][Dim + pad];
    bf16 v[Keys][Dim + pad];
    bf16 weights[rows_of_block][Keys + pad];
    float top[2][rows_of_block], sum[2][rows_of_block];
    int begin[rows_of_block], end[rows_of_block];
};

template <int Dim, int Keys>
__global__ void __launch_bounds__(threads, Dim <= 256 ? 2 : 1)
    attention_mma_kernel(AttentionPointers p, int splits, float* partial_sums, float2* partial_ends) {
    begin_kernel();
    extern __shared__ __align__(16) std::uint8_t memory[];
    auto& s = *reinterpret_cast<Shared<Dim, Keys>*>(memory);
    const DeviceSegment segment = p.segments[static_cast<int>(blockIdx.z) / splits];
    const int split = static_cast<int>(blockIdx.z) % splits;
    const int group = p.heads / p.kv_heads, kv_head = static_cast<int>(blockIdx.y);
    const int packed0 = static_cast<int>(blockIdx.x) * rows_of_block, packed_rows = segment.rows * group;
    if (packed0 >= packed_rows) return;
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    const int warp_row = warp % 4 * 16, half = warp / 4;

    // --- the rows' keys, and the tiles that anybody here needs
    if (t < rows_of_block) {
        const int token = segment.first_row + min(packed0 + t, packed_rows - 1) / group;
        s.begin[t] = p.key_begin[token];
        s.end[t] = p.key_end[token];
    }
    __syncthreads();
    int lowest = s.begin[0], highest = s.end[0], all_begin = lowest, all_end = highest;
    for (int r = 1; r < rows_of_block; ++r) {
        lowest = min(lowest, s.begin[r]), all_begin = max(all_begin, s.begin[r]);
        highest = max(highest, s.end[r]), all_end = min(all_end, s.end[r]);
    }
    int tile = lowest / Keys, end_tile = (highest + Keys - 1) / Keys;
    if (segment.canvas_position >= 0 && splits > 1 && (end_tile - tile) * Keys >= least_split_keys) {
        const int share = (end_tile - tile + splits - 1) / splits;
        tile += split * share;
        end_tile = min(end_tile, tile + share);
    } else if (split > 0) {
        end_tile = tile;
    }

    const int width = p.kv_heads * Dim;
    const auto load_tile = [&](bf16(&to)[Keys][Dim + pad], const void* own, const void* const* pages,
                               int at) {
        const int first = at * Keys;
        const int cached_end = segment.canvas_position >= 0 ? segment.canvas_position : highest;
        const bf16* page = nullptr;
        if (first < cached_end) {
            page =
                static_cast<const bf16*>(pages[first / static_cast<int>(page_tokens) % segment.ring_pages]) +
                (static_cast<std::int64_t>(kv_head) * page_tokens + first % static_cast<int>(page_tokens)) *
                    Dim;
        }
        const bf16* rows = static_cast<const bf16*>(own) +
                           static_cast<std::int64_t>(segment.first_row - segment.canvas_position) * width +
                           kv_head * Dim;
#pragma unroll 2
        for (int i = 0; i < (Keys * Dim / 8 + threads - 1) / threads; ++i) {
            const int chunk = t + threads * i;
            if (Keys * Dim / 8 % threads != 0 && chunk >= Keys * Dim / 8) break;
            const int key = chunk / (Dim / 8), d = chunk % (Dim / 8) * 8, position = first + key;
            const bool seen = position >= lowest && position < highest;
            const bf16* from = position < cached_end ? page + static_cast<std::int64_t>(key) * Dim + d
                                                     : rows + static_cast<std::int64_t>(position) * width + d;
            copy16_async(shared_address(&to[key][d]), seen ? from : static_cast<const bf16*>(p.q), seen);
        }
    };

    // --- queries
#pragma unroll
    for (int i = 0; i < (rows_of_block * Dim / 8 + threads - 1) / threads; ++i) {
        const int chunk = t + threads * i;
        if (rows_of_block * Dim / 8 % threads != 0 && chunk >= rows_of_block * Dim / 8) break;
        const int r = chunk / (Dim / 8), d = chunk % (Dim / 8) * 8, packed = packed0 + r;
        const bool valid = packed < packed_rows;
        const int token = valid ? segment.first_row + packed / group : 0,
                  head = kv_head * group + packed % group;
        copy16_async(
            shared_address(&s.q[r][d]),
            static_cast<const bf16*>(p.q) + (static_cast<std::int64_t>(token) * p.heads + head) * Dim + d,
            valid);
    }
    if (tile < end_tile) load_tile(s.k, p.k, segment.keys, tile);
    commit_copies();
    if (tile < end_tile) load_tile(s.v, p.v, segment.values, tile);
    commit_copies();

    constexpr int key_blocks = Keys / 16;                       // of 8 keys, in this warp's half
    constexpr int column_blocks = Dim / 16 > 0 ? Dim / 16 : 1;  // of 8 columns, in this warp's half
    float out[column_blocks][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (; tile < end_tile; ++tile) {
        wait_copies<1>();
        __syncthreads();
        float scores[key_blocks][4] = {};
#pragma unroll 2
        for (int d = 0; d < Dim; d += 16) {
            std::uint32_t a[4];
            load_matrices(a, shared_address(&s.q[warp_row + lane % 16][d + lane / 16 * 8]));
#pragma unroll
            for (int j = 0; j < key_blocks; j += 2) {
                std::uint32_t b[4];
                load_matrices(
                    b, shared_address(
                           &s.k[half * Keys / 2 + 8 * j + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]));
                multiply_add(scores[j], a, b[0], b[1]);
                multiply_add(scores[j + 1], a, b[2], b[3]);
            }
        }
        const int first = tile * Keys;
        if (first < all_begin || first + Keys > all_end) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = warp_row + lane / 4 + 8 * h;
                const int begin = s.begin[r], end = s.end[r];
#pragma unroll
                for (int j = 0; j < key_blocks; ++j) {
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int position = first + half * Keys / 2 + 8 * j + lane % 4 * 2 + c;
                        if (position < begin || position >= end) scores[j][2 * h + c] = -INFINITY;
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float high = -INFINITY;
#pragma unroll
            for (int j = 0; j < key_blocks; ++j)
                high = fmaxf(high, fmaxf(scores[j][2 * h], scores[j][2 * h + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
            if (lane % 4 == 0) s.top[half][warp_row + lane / 4 + 8 * h] = high;
        }
        __syncthreads();  // nobody reads these keys any more
        if (tile + 1 < end_tile) load_tile(s.k, p.k, segment.keys, tile + 1);
        commit_copies();
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = warp_row + lane / 4 + 8 * h;
            const float higher = fmaxf(top[h], fmaxf(s.top[0][r], s.top[1][r]));
            const float base = higher == -INFINITY ? 0.0f : higher;
            keep[h] = exp2f((top[h] - base) * log2e);
            top[h] = higher;
            float added = 0;
#pragma unroll
            for (int j = 0; j < key_blocks; ++j) {
                const float w0 = exp2f((scores[j][2 * h] - base) * log2e);
                const float w1 = exp2f((scores[j][2 * h + 1] - base) * log2e);
                added += w0 + w1;
                *reinterpret_cast<std::uint32_t*>(&s.weights[r][half * Keys / 2 + 8 * j + lane % 4 * 2]) =
                    pack2(w0, w1);
            }
            sum[h] = sum[h] * keep[h] + added;
        }
#pragma unroll
        for (auto& o : out) o[0] *= keep[0], o[1] *= keep[0], o[2] *= keep[1], o[3] *= keep[1];
        wait_copies<1>();
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < Keys; k += 16) {
            std::uint32_t a[4];
            load_matrices(a, shared_address(&s.weights[warp_row + lane % 16][k + lane / 16 * 8]));
#pragma unroll
            for (int j = 0; j < column_blocks; j += 2) {
                std::uint32_t b[4];
                load_matrices_transposed(
                    b, shared_address(&s.v[k + lane % 16][half * Dim / 2 + 8 * j + lane / 16 * 8]));
                multiply_add(out[j], a, b[0], b[1]);
                if (j + 1 < column_blocks) multiply_add(out[(j + 1) % column_blocks], a, b[2], b[3]);
            }
        }
        __syncthreads();  // nor these values
        if (tile + 1 < end_tile) load_tile(s.v, p.v, segment.values, tile + 1);
        commit_copies();
    }
    wait_copies<0>();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 2);
        if (lane % 4 == 0) s.sum[half][warp_row + lane / 4 + 8 * h] = sum[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = warp_row + lane / 4 + 8 * h, packed = packed0 + r;
        if (packed >= packed_rows) continue;
        const float all = s.sum[0][r] + s.sum[1][r];
        const std::int64_t at = static_cast<std::int64_t>(segment.first_row + packed / group) * p.heads +
                                kv_head * group + packed % group;
        if (splits > 1) {
            const std::int64_t part = split * p.rows * p.heads + at;
            if (half == 0 && lane % 4 == 0) partial_ends[part] = make_float2(top[h], all);
#pragma unroll
            for (int j = 0; j < column_blocks; ++j) {
                *reinterpret_cast<float2*>(partial_sums + part * Dim + half * Dim / 2 + 8 * j +
                                           lane % 4 * 2) = make_float2(out[j][2 * h], out[j][2 * h + 1]);
            }
        } else {
            bf16* to = static_cast<bf16*>(p.out) + at * Dim + half * Dim / 2 + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < column_blocks; ++j) {
                *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
                    pack2(out[j][2 * h] / all, out[j][2 * h + 1] / all);
            }
        }
    }
}

template <int Dim, int Keys>
void run_attention(Context& c, const AttentionPointers& p) {
    constexpr int bytes = static_cast<int>(sizeof(Shared<Dim, Keys>));
    auto* kernel = attention_mma_kernel<Dim, Keys>;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
    const int splits = p.any_canvas ? canvas_splits : 1;
    const std::int64_t count = p.rows * p.heads;
    float* sums = splits > 1 ? c.scratch<float>(Scratch::attention_sums, splits * count * Dim) : nullptr;
    auto* ends = splits > 1 ? c.scratch<float2>(Scratch::attention_ends, splits * count) : nullptr;
    if (c.failed()) return;
    const std::int64_t packed = p.most_rows * (p.heads / p.kv_heads);
    const dim3 grid(static_cast<unsigned>((packed + rows_of_block - 1) / rows_of_block),
                    static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.count * splits));
    launch(c, "attention", kernel, grid, threads, bytes, p, splits, sums, ends);
    if (splits > 1) {
        merge_attention(c, sums, ends, p.rows, p.heads, Dim, splits, PartColumns::in_order, p.out, {});
    }
}

// The tile of keys for a head size: what a block's shared memory holds on this device; 0: none.
template <int Dim>
int keys_for(const Context& c) {
    if (static_cast<int>(sizeof(Shared<Dim, 64>)) <= c.shared_limit()) return 64;
    return static_cast<int>(sizeof(Shared<Dim, 32>)) <= c.shared_limit() ? 32 : 0;
}

template <int Dim>
void run_fitting(Context& c, const AttentionPointers& p) {
    keys_for<Dim>(c) == 64 ? run_attention<Dim, 64>(c, p) : run_attention<Dim, 32>(c, p);
}

}  // namespace

bool attention_mma_fits(const Context& c, int head_dim) {
    switch (head_dim) {
        case 16:
        case 32:
        case 64:
        case 128:
            return true;
        case 256:
            return keys_for<256>(c) != 0;
        case 512:
            return keys_for<512>(c) != 0;
        default:
            return false;
    }
}

void attention_mma(Context& c, const AttentionPointers& p) {
    if (c.failed() || p.rows == 0) return;
    switch (p.head_dim) {
        case 16:
            return run_attention<16, 64>(c, p);
        case 32:
            return run_attention<32, 64>(c, p);
        case 64:
            return run_attention<64, 64>(c, p);
        case 128:
            return run_attention<128, 64>(c, p);
        case 256:
            return run_fitting<256>(c, p);
        default:
            return run_fitting<512>(c, p);
    }
}

}  // namespace dgemma::backend::cuda
