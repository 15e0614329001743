// Attention on Hopper for heads of 256 and 512, bf16: one warpgroup copies keys and values from the cache's
// pages and the canvas's own rows, two multiply on wgmma.
//
// The order of a row's keys is that of attention_mma.cu: tiles of 64 at multiples of 64 from position 0, a
// canvas's keys cut into parts by its own context alone, so that neither neighbours nor cuts of a prompt
// change a bit.
//
// Heads of 256: a block has 128 query rows, 64 for each multiplying warpgroup, and two tiles of keys and
// values on their way. Heads of 512: 64 rows; each warpgroup scores half of a tile's keys, both share the
// weights, and each sums half of the columns.
#include "backend/cuda/sm90_attention.cuh"

namespace dgemma::backend::cuda {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Half `H` of a thread's sums: a row of the block's, from column0 on.
template <int Dim, int H>
__device__ __forceinline__ void write_row(const Problem& problem, const Task& task, int row, int column0,
                                          float top, float sum, const float (&out)[128]) {
    const AttentionPointers& p = problem.p;
    const int packed = task.packed0 + row;
    if (packed >= task.packed_rows) return;
    const std::int64_t at =
        static_cast<std::int64_t>(task.segment.first_row + packed / task.group) * p.heads +
        task.kv_head * task.group + packed % task.group;
    if (problem.splits > 1) {
        const std::int64_t part = task.split * p.rows * p.heads + at;
        if (column0 == 0) problem.ends[part] = make_float2(top, sum);
        float* to = problem.sums + part * Dim + column0;
#pragma unroll
        for (int j = 0; j < 32; ++j)
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(out[4 * j + 2 * H], out[4 * j + 2 * H + 1]);
    } else {
        bf16* to = static_cast<bf16*>(p.out) + at * Dim + column0;
#pragma unroll
        for (int j = 0; j < 32; ++j)
            *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
                pack2(out[4 * j + 2 * H] / sum, out[4 * j + 2 * H + 1] / sum);
    }
}

// The multiplying warpgroups fetch their queries themselves: 64 rows for each, or, of wide heads, for both.
template <int Dim>
__device__ void copy_queries(const Problem& problem, const Task& task, Shared<Dim>& s) {
    constexpr bool wide = Plan<Dim>::wide;
    constexpr int together = wide ? 256 : 128, in_row = Dim / 8, step = together / in_row;
    const int t = static_cast<int>(threadIdx.x) - copiers, warpgroup = t / 128;
    const int piece = t % together % in_row, row0 = (wide ? 0 : 64 * warpgroup) + t % together / in_row;
    int token = (task.packed0 + row0) / task.group, member = (task.packed0 + row0) % task.group;
#pragma unroll 4
    for (int i = 0; i < 64 / step; ++i) {
        const int r = row0 + i * step;
        const bool valid = task.packed0 + r < task.packed_rows;
        const bf16* from = static_cast<const bf16*>(problem.p.q) +
                           (static_cast<std::int64_t>(task.segment.first_row + token) * problem.p.heads +
                            task.kv_head * task.group + member) *
                               Dim +
                           piece * 8;
        copy16_async(shared_address(s.q[piece / 8] + swizzled(r, piece % 8)),
                     valid ? from : static_cast<const bf16*>(problem.p.q), valid);
        for (member += step; member >= task.group; member -= task.group) ++token;
    }
    commit_copies();
    wait_copies<0>();
    fence_copy_engine();
    asm volatile("bar.sync %0, %1;\n" ::"r"(3 + (wide ? 0 : warpgroup)), "n"(together) : "memory");
}

// A multiplying warpgroup.
template <int Dim>
__device__ void attend(const Problem& problem, const Task& task, Shared<Dim>& s) {
    using P = Plan<Dim>;
    constexpr int own_keys = P::wide ? 32 : 64;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int row0 = (P::wide ? 0 : 64 * warpgroup) + warp * 16 + lane / 4;  // and row0 + 8
    const int key0 = P::wide ? 32 * warpgroup : 0;
    const auto release = [&](std::uint64_t* barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    float out[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] = 0;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    copy_queries<Dim>(problem, task, s);
    int stage = 0, phase = 0;
    for (int tile = task.first_tile; tile < task.end_tile; ++tile) {
        float scores[own_keys / 2];
        barrier_wait(&s.k_full[stage], phase);
        fence_copy_engine();
        warpgroup_begin();
#pragma unroll
        for (int c = 0; c < P::slabs; ++c) {
            const std::uint64_t a = tile_descriptor(s.q[c] + (P::wide ? 0 : warpgroup * slab));
            const std::uint64_t b = tile_descriptor(s.k[stage][c] + key0 * 64);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                WarpgroupMultiply<own_keys, false>::run(scores, a + 2 * i, b + 2 * i, c > 0 || i > 0);
        }
        warpgroup_commit();
        warpgroup_wait<0>();
        hold(scores);
        release(&s.k_empty[stage]);

        const int first = tile * keys_of_tile;
        if (first < task.all_begin || first + keys_of_tile > task.all_end) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int begin = s.begin[row0 + 8 * h], end = s.end[row0 + 8 * h];
#pragma unroll
                for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int position = first + key0 + 8 * j + lane % 4 * 2 + c;
                        if (position < begin || position >= end) scores[4 * j + 2 * h + c] = -INFINITY;
                    }
                }
            }
        }
        float highest[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float high = -INFINITY;
#pragma unroll
            for (int j = 0; j < own_keys / 8; ++j)
                high = fmaxf(high, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
            highest[h] = high;
            if (P::wide && lane % 4 == 0) s.top[warpgroup][row0 + 8 * h] = high;
        }
        if (P::wide) {
            // Both have their maxima, and are through with the weights of the tile before.
            asm volatile("bar.sync 1, 256;\n" ::: "memory");
#pragma unroll
            for (int h = 0; h < 2; ++h) highest[h] = fmaxf(highest[h], s.top[1 - warpgroup][row0 + 8 * h]);
        }
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float higher = fmaxf(top[h], highest[h]);
            const float base = higher == -INFINITY ? 0.0f : higher;
            keep[h] = exp2f((top[h] - base) * log2e);
            top[h] = higher;
            float added = 0;
#pragma unroll
            for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = scores[4 * j + 2 * h + c];
                    x = exp2f((x - base) * log2e);
                    added += x;
                }
            }
            sum[h] = sum[h] * keep[h] + added;
        }
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            out[4 * j] *= keep[0], out[4 * j + 1] *= keep[0];
            out[4 * j + 2] *= keep[1], out[4 * j + 3] *= keep[1];
        }
        if constexpr (P::wide) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int j = 0; j < own_keys / 8; ++j) {
                    bf16* to = s.weights + swizzled(row0 + 8 * h, key0 / 8 + j) + lane % 4 * 2;
                    *reinterpret_cast<std::uint32_t*>(to) =
                        pack2(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]);
                }
            }
            fence_copy_engine();
            asm volatile("bar.sync 2, 256;\n" ::: "memory");
            barrier_wait(&s.v_full[stage], phase);
            fence_copy_engine();
            const std::uint64_t a = tile_descriptor(s.weights);
            const std::uint64_t b = tile_descriptor(s.v[stage][4 * warpgroup], slab * 2);
            warpgroup_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i) WarpgroupMultiply<256, true>::run(out, a + 2 * i, b + 128 * i, true);
        } else {
            std::uint32_t weights[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int w = 0; w < 4; ++w)
                    weights[i][w] = pack2(scores[8 * i + 2 * w], scores[8 * i + 2 * w + 1]);
            }
            barrier_wait(&s.v_full[stage], phase);
            fence_copy_engine();
            const std::uint64_t b = tile_descriptor(s.v[stage][0], slab * 2);
            warpgroup_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i) warpgroup_multiply_registers(out, weights[i], b + 128 * i);
        }
        warpgroup_commit();
        warpgroup_wait<0>();
        hold(out);
        release(&s.v_empty[stage]);
        if (++stage == P::stages) stage = 0, phase ^= 1;
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 2);
        if (P::wide && lane % 4 == 0) s.sum[warpgroup][row0 + 8 * h] = sum[h];
    }
    if (P::wide) {
        asm volatile("bar.sync 1, 256;\n" ::: "memory");
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[h] = s.sum[0][row0 + 8 * h] + s.sum[1][row0 + 8 * h];
    }
    const int column0 = (P::wide ? 256 * warpgroup : 0) + lane % 4 * 2;
    write_row<Dim, 0>(problem, task, row0, column0, top[0], sum[0], out);
    write_row<Dim, 1>(problem, task, row0 + 8, column0, top[1], sum[1], out);
}

#endif

template <int Dim>
__global__ void __launch_bounds__(threads, 1) sm90_attention_kernel(const __grid_constant__ Problem problem) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using P = Plan<Dim>;
    extern __shared__ std::uint8_t memory[];
    auto& s = *reinterpret_cast<Shared<Dim>*>(memory + padding_to_1024(memory));
    const AttentionPointers& p = problem.p;
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
        for (int i = 0; i < P::stages; ++i) {
            barrier_init(&s.k_full[i], copiers);
            barrier_init(&s.v_full[i], copiers);
            barrier_init(&s.k_empty[i], 8);  // a lane of every multiplying warp
            barrier_init(&s.v_empty[i], 8);
        }
        barrier_init_done();
    }
    // What says which keys a row sees is no kernel's result.
    allow_next_kernel();
    Task task;
    task.segment = p.segments[static_cast<int>(blockIdx.z) / problem.splits];
    task.split = static_cast<int>(blockIdx.z) % problem.splits;
    task.group = p.heads / p.kv_heads;
    task.kv_head = static_cast<int>(blockIdx.y);
    task.packed0 = static_cast<int>(blockIdx.x) * P::rows;
    task.packed_rows = task.segment.rows * task.group;
    if (task.packed0 >= task.packed_rows) return;
    if (t < P::rows) {
        const int token = task.segment.first_row + min(task.packed0 + t, task.packed_rows - 1) / task.group;
        s.begin[t] = p.key_begin[token];
        s.end[t] = p.key_end[token];
    }
    __syncthreads();
    {
        // Every warp finds the same bounds.
        int low = INT_MAX, high = 0, all_begin = 0, all_end = INT_MAX;
        for (int r = t % 32; r < P::rows; r += 32) {
            low = min(low, s.begin[r]), all_begin = max(all_begin, s.begin[r]);
            high = max(high, s.end[r]), all_end = min(all_end, s.end[r]);
        }
        task.lowest = __reduce_min_sync(0xFFFFFFFFu, low);
        task.highest = __reduce_max_sync(0xFFFFFFFFu, high);
        task.all_begin = __reduce_max_sync(0xFFFFFFFFu, all_begin);
        task.all_end = __reduce_min_sync(0xFFFFFFFFu, all_end);
    }
    task.first_tile = task.lowest / keys_of_tile;
    task.end_tile = (task.highest + keys_of_tile - 1) / keys_of_tile;
    if (task.segment.canvas_position >= 0 && problem.splits > 1) {
        const int share = (task.end_tile - task.first_tile + problem.splits - 1) / problem.splits;
        task.first_tile += task.split * share;
        task.end_tile = min(task.end_tile, task.first_tile + share);
    } else if (task.split > 0) {
        task.end_tile = task.first_tile;
    }
    if (t < copiers) {
        give_registers<40>();
        copy_all<Dim>(problem, task, s);
    } else {
        take_registers<232>();
        wait_for_previous_kernel();
        attend<Dim>(problem, task, s);
    }
#endif
}

template <int Dim>
void run_attention(Context& c, const AttentionPointers& p) {
    using P = Plan<Dim>;
    constexpr int bytes = static_cast<int>(sizeof(Shared<Dim>)) + 1024;
    c.check(
        cudaFuncSetAttribute(sm90_attention_kernel<Dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention");
    Problem problem{p, p.any_canvas ? P::splits : 1, nullptr, nullptr};
    const std::int64_t count = p.rows * p.heads;
    if (problem.splits > 1) {
        problem.sums = c.scratch<float>(Scratch::attention_sums, problem.splits * count * Dim);
        problem.ends = c.scratch<float2>(Scratch::attention_ends, problem.splits * count);
    }
    if (c.failed()) return;
    const std::int64_t packed = p.most_rows * (p.heads / p.kv_heads);
    const dim3 grid(static_cast<unsigned>((packed + P::rows - 1) / P::rows),
                    static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.count * problem.splits));
    launch(c, "attention", sm90_attention_kernel<Dim>, grid, threads, bytes, problem);
    if (problem.splits > 1)
        merge_attention(c, problem.sums, problem.ends, p.rows, p.heads, Dim, problem.splits, p.out, p.codes);
}

}  // namespace

void sm90_attention(Context& c, const AttentionPointers& p) {
    if (c.failed() || p.rows == 0) return;
    p.head_dim == 256 ? run_attention<256>(c, p) : run_attention<512>(c, p);
}

}  // namespace dgemma::backend::cuda
