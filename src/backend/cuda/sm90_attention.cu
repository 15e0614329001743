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

// 2^x, of which what is below the smallest normal number is zero.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// A word that all lanes have, where the compiler sees that they do: what is made of it stays out of the
// lanes' registers, from which each operand of a matrix instruction would have to be brought.
__device__ __forceinline__ std::uint32_t same_in_warp(std::uint32_t word) {
    return __reduce_or_sync(0xFFFFFFFFu, word);
}

// Half `H` of a thread's sums: a row of the block's, from column0 on. By whole warps.
template <int Dim, int H>
__device__ __forceinline__ void write_row(const Problem& problem, const Task& task, int row, int column0,
                                          float top, float sum, const float (&out)[128]) {
    const AttentionPointers& p = problem.p;
    const int packed = task.packed0 + row, lane = static_cast<int>(threadIdx.x) % 4;
    const bool valid = packed < task.packed_rows;
    const std::int64_t at =
        static_cast<std::int64_t>(task.segment.first_row + packed / task.group) * p.heads +
        task.kv_head * task.group + packed % task.group;
    if (problem.splits > 1) {
        const std::int64_t part = task.split * p.rows * p.heads + at;
        if (valid && column0 + lane == 0) problem.ends[part] = make_float2(top, sum);
        // Of two times eight columns a lane has two and two; its neighbour and it make four of each.
        const bool odd = lane % 2 != 0;
        float* to = problem.sums + part * Dim + column0 + (odd ? 8 : 0) + lane / 2 * 4;
#pragma unroll
        for (int j = 0; j < 32; j += 2) {
            const float a0 = out[4 * j + 2 * H], a1 = out[4 * j + 2 * H + 1];
            const float b0 = out[4 * j + 4 + 2 * H], b1 = out[4 * j + 5 + 2 * H];
            const float got0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? a0 : b0, 1);
            const float got1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? a1 : b1, 1);
            const float4 four = odd ? make_float4(got0, got1, b0, b1) : make_float4(a0, a1, got0, got1);
            if (valid) *reinterpret_cast<float4*>(to + 8 * j) = four;
        }
    } else if (valid) {
        const float share = 1.0f / sum;
        bf16* to = static_cast<bf16*>(p.out) + at * Dim + column0 + lane * 2;
#pragma unroll
        for (int j = 0; j < 32; ++j)
            *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
                pack2(out[4 * j + 2 * H] * share, out[4 * j + 2 * H + 1] * share);
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
    const int tokens_on = step / task.group, members_on = step % task.group;
#pragma unroll
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
        token += tokens_on, member += members_on;
        if (member >= task.group) member -= task.group, ++token;
    }
    commit_copies();
    wait_copies<0>();
    fence_copy_engine();
    asm volatile("bar.sync %0, %1;\n" ::"r"(3 + (wide ? 0 : warpgroup)), "n"(together) : "memory");
}

// What a thread of a multiplying warpgroup knows of its two rows, and what it does with their scores.
template <int Dim>
struct Weighing {
    using P = Plan<Dim>;
    static constexpr int own_keys = P::wide ? 32 : 64;
    static constexpr int count = own_keys / 2;  // scores of a thread

    // Of the keys of a tile, scores become weights.
    __device__ __forceinline__ void weigh(const Task& task, Shared<Dim>& s, int tile,
                                          float (&scores)[count]) {
        const int first = tile * keys_of_tile;
        if (first < task.all_begin || first + keys_of_tile > task.all_end) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int at = first + key0 + lane % 4 * 2;
                const int begin = s.begin[row0 + 8 * h] - at, end = s.end[row0 + 8 * h] - at;
#pragma unroll
                for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        if (8 * j + c < begin || 8 * j + c >= end) scores[4 * j + 2 * h + c] = -INFINITY;
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
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float higher = fmaxf(top[h], highest[h]);
            const float base = higher == -INFINITY ? 0.0f : higher;
            // Exactly one where the maximum is the old one.
            keep[h] = power_of_two((top[h] - base) * log2e);
            top[h] = higher;
            const float below = base * -log2e;
            float added = 0;
#pragma unroll
            for (int j = 0; j < own_keys / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = scores[4 * j + 2 * h + c];
                    x = power_of_two(fmaf(x, log2e, below));
                    added += x;
                }
            }
            sum[h] = sum[h] * keep[h] + added;
        }
    }
    // The sums of the tiles before, for which another maximum may have held.
    __device__ __forceinline__ void rescale(float (&out)[128]) const {
        if (!__any_sync(0xFFFFFFFFu, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            out[4 * j] *= keep[0], out[4 * j + 1] *= keep[0];
            out[4 * j + 2] *= keep[1], out[4 * j + 3] *= keep[1];
        }
    }

    int warpgroup, lane, row0, key0;  // rows row0 and row0 + 8; the tile's keys from key0 on
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2] = {1, 1};
};

// A multiplying warpgroup. While the matrix unit sums a tile's values, the next tile's scores, asked for
// before, are weighed.
template <int Dim>
__device__ void attend(const Problem& problem, const Task& task, Shared<Dim>& s) {
    using P = Plan<Dim>;
    using W = Weighing<Dim>;
    constexpr int words_of_slab = slab * 2 >> 4;  // in a descriptor's unit
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    W w{warpgroup, lane, (P::wide ? 0 : 64 * warpgroup) + warp * 16 + lane / 4, P::wide ? 32 * warpgroup : 0};
    const auto release = [&](std::uint64_t* barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    // Of the queries; of the first stage's keys and, by rows, values.
    const auto queries_word = [&] {
        return same_in_warp(tile_descriptor_word(shared_address(s.q[0] + (P::wide ? 0 : warpgroup * slab))));
    };
    const auto keys_word = [&] {
        return same_in_warp(tile_descriptor_word(shared_address(s.k[0][0] + w.key0 * 64)));
    };
    const auto values_word = [&] {
        return same_in_warp(tile_descriptor_word(shared_address(s.v[0][P::wide ? 4 * warpgroup : 0])) +
                            ((words_of_slab - 1) << 16));
    };
    float out[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] = 0;
    float scores[W::count];
    const auto start_scores = [&](int stage, std::uint32_t q_word, std::uint32_t k_word) {
#pragma unroll
        for (int c = 0; c < P::slabs; ++c) {
            const std::uint32_t a = q_word + c * (P::rows * 128 >> 4);
            const std::uint32_t b = k_word + (stage * P::slabs + c) * words_of_slab;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                WarpgroupMultiply<W::own_keys, false>::run(scores, tile_descriptor_of(a + 2 * i),
                                                           tile_descriptor_of(b + 2 * i), c > 0 || i > 0);
        }
        warpgroup_commit();
    };
    copy_queries<Dim>(problem, task, s);
    if (task.first_tile < task.end_tile) {
        if constexpr (P::wide) {
            int phase = 0;
            for (int tile = task.first_tile; tile < task.end_tile; ++tile, phase ^= 1) {
                const std::uint32_t q_word = queries_word(), k_word = keys_word();
                barrier_wait(&s.k_full[0], phase);
                fence_copy_engine();
                warpgroup_begin();
                start_scores(0, q_word, k_word);
                warpgroup_wait<0>();
                hold(scores);
                release(&s.k_empty[0]);
                w.weigh(task, s, tile, scores);
                w.rescale(out);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int j = 0; j < W::own_keys / 8; ++j) {
                        bf16* to = s.weights + swizzled(w.row0 + 8 * h, w.key0 / 8 + j) + lane % 4 * 2;
                        *reinterpret_cast<std::uint32_t*>(to) =
                            pack2(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]);
                    }
                }
                fence_copy_engine();
                asm volatile("bar.sync 2, 256;\n" ::: "memory");
                barrier_wait(&s.v_full[0], phase);
                fence_copy_engine();
                const std::uint32_t a = same_in_warp(tile_descriptor_word(shared_address(s.weights)));
                const std::uint32_t v_word = values_word();
                warpgroup_begin();
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    WarpgroupMultiply<256, true>::run(out, tile_descriptor_of(a + 2 * i),
                                                      tile_descriptor_of(v_word + 128 * i), true);
                warpgroup_commit();
                warpgroup_wait<0>();
                hold(out);
                release(&s.v_empty[0]);
            }
        } else {
            const std::uint32_t q_word = queries_word(), k_word = keys_word(), v_word = values_word();
            std::uint32_t weights[4][4];
            const auto pack = [&] {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        weights[i][j] = pack2(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
                }
            };
            const auto start_values = [&](int stage) {
                const std::uint32_t b = v_word + stage * P::slabs * words_of_slab;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    warpgroup_multiply_registers(out, weights[i], tile_descriptor_of(b + 128 * i));
                warpgroup_commit();
            };
            barrier_wait(&s.k_full[0], 0);
            fence_copy_engine();
            warpgroup_begin();
            start_scores(0, q_word, k_word);
            warpgroup_wait<0>();
            hold(scores);
            release(&s.k_empty[0]);
            w.weigh(task, s, task.first_tile, scores);
            pack();
            int stage = 0, phase = 0;
            for (int tile = task.first_tile + 1; tile < task.end_tile; ++tile) {
                const int before = stage, phase_before = phase;
                if (++stage == P::stages) stage = 0, phase ^= 1;
                // The next keys, whose copying began after that of these values.
                barrier_wait(&s.k_full[stage], phase);
                barrier_wait(&s.v_full[before], phase_before);
                fence_copy_engine();
                warpgroup_begin();
                start_scores(stage, q_word, k_word);
                start_values(before);
                warpgroup_wait<1>();
                hold(scores);
                release(&s.k_empty[stage]);
                w.weigh(task, s, tile, scores);
                warpgroup_wait<0>();
                hold(out);
                release(&s.v_empty[before]);
                w.rescale(out);
                pack();
            }
            barrier_wait(&s.v_full[stage], phase);
            fence_copy_engine();
            warpgroup_begin();
            start_values(stage);
            warpgroup_wait<0>();
            hold(out);
        }
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        w.sum[h] += __shfl_xor_sync(0xFFFFFFFFu, w.sum[h], 1);
        w.sum[h] += __shfl_xor_sync(0xFFFFFFFFu, w.sum[h], 2);
        if (P::wide && lane % 4 == 0) s.sum[warpgroup][w.row0 + 8 * h] = w.sum[h];
    }
    if (P::wide) {
        asm volatile("bar.sync 1, 256;\n" ::: "memory");
#pragma unroll
        for (int h = 0; h < 2; ++h) w.sum[h] = s.sum[0][w.row0 + 8 * h] + s.sum[1][w.row0 + 8 * h];
    }
    const int column0 = P::wide ? 256 * warpgroup : 0;
    write_row<Dim, 0>(problem, task, w.row0, column0, w.top[0], w.sum[0], out);
    write_row<Dim, 1>(problem, task, w.row0 + 8, column0, w.top[1], w.sum[1], out);
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
