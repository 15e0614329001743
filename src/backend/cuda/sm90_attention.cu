// Attention on Hopper for heads of 256 and 512, bf16: one warpgroup copies keys and values from the cache's
// pages and the canvas's own rows, two multiply on wgmma.
//
// The order of a row's keys is that of attention_mma.cu: tiles of 64 at multiples of 64 from position 0, a
// canvas's keys cut into parts by its own context alone, so that neither neighbours nor cuts of a prompt
// change a bit.
//
// While the matrix unit sums a tile's values, the next tile's scores become weights; the order of the sums is
// the plain one.
//
// Of few rows, a block has one part of the keys, and another kernel brings the parts together
// (attention_merge.cu). Where rows alone keep the card busy a block has all parts, one after another, with
// the sums so far in global memory, of which each thread reads what it wrote: the same sums in the same
// order.
//
// Heads of 256: a block has 128 query rows, 64 for each multiplying warpgroup, and two tiles of keys and
// values on their way. Heads of 512: 64 rows; each warpgroup scores half of a tile's keys, both share the
// weights, and each sums half of the columns.
#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/sm90_attention.cuh"
#include "backend/cuda/sm90_attention_rows.cuh"
#include "backend/cuda/sm90_attention_weights.cuh"

namespace dgemma::backend::cuda {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The lower words of the descriptors of what a warpgroup multiplies: its queries; of the first stage its keys
// and, by rows, its columns of the values; of wide heads the weights.
template <int Dim>
struct Words {
    using P = Plan<Dim>;
    __device__ __forceinline__ Words(const Shared<Dim>& s, int warpgroup, int key0)
        : q(uniform(tile_descriptor_word(shared_address(s.q[0] + (P::wide ? 0 : warpgroup * slab))))),
          k(uniform(tile_descriptor_word(shared_address(s.k[0][0] + key0 * 64)))),
          v(uniform(tile_descriptor_word(shared_address(s.v[0][P::wide ? 4 * warpgroup : 0])) +
                    ((of_slab - 1) << 16))),
          weights(uniform(tile_descriptor_word(shared_address(s.weights)))) {}
    static constexpr int of_slab = slab * 2 >> 4;  // in a descriptor's unit
    std::uint32_t q, k, v, weights;
};

// A multiplying warpgroup. While the matrix unit sums a tile's values, the next tile's scores, asked for
// before, are weighed.
template <int Dim, bool AllParts>
__device__ void attend(const Problem& problem, const Task& task, Shared<Dim>& s) {
    using P = Plan<Dim>;
    using W = Weighing<Dim>;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    W w{warpgroup, lane, (P::wide ? 0 : 64 * warpgroup) + warp * 16 + lane / 4, P::wide ? 32 * warpgroup : 0};
    const auto release = [&](std::uint64_t* barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    float out[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] = 0;
    copy_queries<Dim>(problem, s);
    float scores[W::count];
    std::uint32_t weights[P::wide ? 1 : 4][4];
    const auto start_scores = [&](const Words<Dim>& words, int stage) {
#pragma unroll
        for (int c = 0; c < P::slabs; ++c) {
            const std::uint32_t a = words.q + c * (P::rows * 128 >> 4);
            const std::uint32_t b = words.k + (stage * P::slabs + c) * words.of_slab;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                WarpgroupMultiply<W::own_keys, false>::run(scores, tile_descriptor_of(a + 2 * i),
                                                           tile_descriptor_of(b + 2 * i), c > 0 || i > 0);
        }
        warpgroup_commit();
    };
    // Of wide heads both warpgroups bring their weights together, in turn in one of two places.
    const auto bring_weights = [&](int place) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int j = 0; j < W::own_keys / 8; ++j) {
                bf16* to = s.weights + place * slab + swizzled(w.row0 + 8 * h, w.key0 / 8 + j) + lane % 4 * 2;
                *reinterpret_cast<std::uint32_t*>(to) =
                    pack2(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]);
            }
        }
        fence_copy_engine();
        asm volatile("bar.sync 2, 256;\n" ::: "memory");
    };
    const auto pack_weights = [&] {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                weights[i][j] = pack2(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
        }
    };
    const auto start_values = [&](const Words<Dim>& words, int stage, int place) {
        const std::uint32_t b = words.v + stage * P::slabs * words.of_slab;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (P::wide) {
                WarpgroupMultiply<256, true>::run(
                    out, tile_descriptor_of(words.weights + place * words.of_slab + 2 * i),
                    tile_descriptor_of(b + 128 * i), true);
            } else {
                warpgroup_multiply_registers(out, weights[i], tile_descriptor_of(b + 128 * i));
            }
        }
        warpgroup_commit();
    };
    // The sums of a row's weights so far, which four threads have, or, of wide heads, those of both
    // warpgroups.
    const auto sum_over_threads = [&] {
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
    };
    PartsOfRow parts[2];  // of the thread's two rows
    const auto end_part = [&] {
        sum_over_threads();
#pragma unroll
        for (int h = 0; h < 2; ++h) parts[h].add(w.top[h], w.sum[h]);
    };
    const std::int64_t block =
        blockIdx.x + gridDim.x * (blockIdx.y + static_cast<std::int64_t>(gridDim.y) * blockIdx.z);
    float4* const so_far = reinterpret_cast<float4*>(problem.so_far) + block * (P::rows * Dim / 4) +
                           (static_cast<int>(threadIdx.x) - copiers);
    const int tiles = task.end_tile - task.first_tile;
    if (tiles > 0) {
        const auto stage_of = [](int n) { return n % P::stages; };
        const auto phase_of = [](int n) { return n / P::stages % 2; };
        Words<Dim> words(s, warpgroup, w.key0);
        barrier_wait(&s.k_full[0], 0);
        fence_copy_engine();
        warpgroup_begin();
        start_scores(words, 0);
        warpgroup_wait<0>();
        hold(scores);
        release(&s.k_empty[0]);
        w.weigh(task, s, task.first_tile, scores);
        if constexpr (P::wide) {
            bring_weights(0);
        } else {
            pack_weights();
        }
        const auto wait_for_keys = [&](int n) {
            if (n < tiles) barrier_wait(&s.k_full[stage_of(n)], phase_of(n));
        };
        if (!P::wide) wait_for_keys(1);
        int next_part = AllParts ? task.part_tiles : tiles;
        for (int n = 1; n < tiles; ++n) {
            const int stage = stage_of(n), before = stage_of(n - 1);
            if (P::wide) {
                words = Words<Dim>(s, warpgroup, w.key0);  // else their sums are kept in lanes' registers
                wait_for_keys(n);
            } else {
                barrier_wait(&s.v_full[before], phase_of(n - 1));
            }
            fence_copy_engine();
            warpgroup_begin();
            start_scores(words, stage);
            if (P::wide) {
                barrier_wait(&s.v_full[before], phase_of(n - 1));
                fence_copy_engine();
                warpgroup_begin();
            }
            start_values(words, before, (n - 1) % 2);
            warpgroup_wait<1>();
            hold(scores);
            release(&s.k_empty[stage]);
            const bool begins_part = AllParts && n == next_part;
            if (begins_part) {
                end_part();
                w.begin_part();
            }
            w.weigh(task, s, task.first_tile + n, scores);
            hold(scores), hold(w.sum), hold(w.keep);
            // Either of these also keeps the assembler from having the weighing wait for the values.
            if constexpr (P::wide) {
                bring_weights(n % 2);
            } else {
                wait_for_keys(n + 1);
            }
            warpgroup_wait<0>();
            hold(out);
            release(&s.v_empty[before]);
            if (begins_part) {
                add_part<false>(so_far, n == task.part_tiles, parts, out);
                next_part += task.part_tiles;
            } else {
                w.rescale(out);
            }
            if constexpr (!P::wide) pack_weights();
        }
        const int last = tiles - 1;
        barrier_wait(&s.v_full[stage_of(last)], phase_of(last));
        fence_copy_engine();
        warpgroup_begin();
        start_values(words, stage_of(last), last % 2);
        warpgroup_wait<0>();
        hold(out);
    }

    if (AllParts) {
        end_part();
        add_part<true>(so_far, tiles <= task.part_tiles, parts, out);
#pragma unroll
        for (int h = 0; h < 2; ++h) w.top[h] = parts[h].top, w.sum[h] = parts[h].sum;
    } else {
        sum_over_threads();
    }
    const int column0 = P::wide ? 256 * warpgroup : 0;
    const int place[2] = {s.place[w.row0], s.place[w.row0 + 8]};
    write_row<Dim, 0>(problem, task, place[0], column0, w.top[0], w.sum[0], out);
    write_row<Dim, 1>(problem, task, place[1], column0, w.top[1], w.sum[1], out);
}

#endif

template <int Dim, bool AllParts>
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
    const int own_splits = AllParts ? 1 : problem.splits;  // blocks that share a row's keys
    task.segment = p.segments[static_cast<int>(blockIdx.z) / own_splits];
    task.split = static_cast<int>(blockIdx.z) % own_splits;
    task.group = p.heads / p.kv_heads;
    task.kv_head = static_cast<int>(blockIdx.y);
    task.packed0 = static_cast<int>(blockIdx.x) * P::rows;
    task.packed_rows = task.segment.rows * task.group;
    if (task.packed0 >= task.packed_rows) return;
    if (t < P::rows) {
        const int packed = min(task.packed0 + t, task.packed_rows - 1);
        const int token = task.segment.first_row + packed / task.group;
        s.begin[t] = p.key_begin[token];
        s.end[t] = p.key_end[token];
        s.place[t] = task.packed0 + t < task.packed_rows
                         ? token * p.heads + task.kv_head * task.group + packed % task.group
                         : -1;
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
    const int tiles = task.end_tile - task.first_tile;
    task.part_tiles = max(1, task.segment.canvas_position >= 0 ? over(tiles, problem.splits) : tiles);
    if constexpr (!AllParts) {
        if (task.segment.canvas_position >= 0 && problem.splits > 1) {
            task.first_tile += task.split * task.part_tiles;
            task.end_tile = min(task.end_tile, task.first_tile + task.part_tiles);
        } else if (task.split > 0) {
            task.end_tile = task.first_tile;
        }
    }
    if (t < copiers) {
        give_registers<40>();
        copy_all<Dim>(problem, task, s);
    } else {
        take_registers<232>();
        attend<Dim, AllParts>(problem, task, s);
    }
#endif
}

// Blocks that have a row's keys alone, without `splits` of them for each.
template <int Dim>
dim3 whole_blocks(const AttentionPointers& p) {
    const std::int64_t packed = p.most_rows * (p.heads / p.kv_heads);
    return {static_cast<unsigned>((packed + Plan<Dim>::rows - 1) / Plan<Dim>::rows),
            static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.count)};
}

// Whether blocks do all parts of their rows: where that takes not many more rounds than parts side by side,
// since it spares the parts' way to memory and back.
template <int Dim>
bool all_parts_in_a_block(const Context& c, const AttentionPointers& p) {
    const dim3 grid = whole_blocks<Dim>(p);
    const std::int64_t blocks = std::int64_t{grid.x} * grid.y * grid.z, splits = Plan<Dim>::splits;
    const auto rounds = [&](std::int64_t count) {
        return (count + c.multiprocessors() - 1) / c.multiprocessors();
    };
    return p.any_canvas && 3 * splits * rounds(blocks) <= 4 * rounds(splits * blocks);
}

template <int Dim, bool AllParts>
void launch_attention(Context& c, const Problem& problem, dim3 grid) {
    constexpr int bytes = static_cast<int>(sizeof(Shared<Dim>)) + 1024;
    auto* kernel = sm90_attention_kernel<Dim, AllParts>;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
    launch(c, "attention", kernel, grid, threads, bytes, problem);
}

template <int Dim>
void run_attention(Context& c, const AttentionPointers& p) {
    Problem problem{p, p.any_canvas ? Plan<Dim>::splits : 1, nullptr, nullptr, nullptr};
    dim3 grid = whole_blocks<Dim>(p);
    if (all_parts_in_a_block<Dim>(c, p)) {
        problem.so_far = c.scratch<float>(Scratch::attention_sums,
                                          std::int64_t{grid.x} * grid.y * grid.z * Plan<Dim>::rows * Dim);
        launch_attention<Dim, true>(c, problem, grid);
        return;
    }
    const std::int64_t count = p.rows * p.heads;
    if (problem.splits > 1) {
        problem.sums = c.scratch<float>(Scratch::attention_sums, problem.splits * count * Dim);
        problem.ends = c.scratch<float2>(Scratch::attention_ends, problem.splits * count);
    }
    if (c.failed()) return;
    grid.z *= static_cast<unsigned>(problem.splits);
    launch_attention<Dim, false>(c, problem, grid);
    if (problem.splits > 1)
        merge_attention(c, problem.sums, problem.ends, p.rows, p.heads, Dim, problem.splits,
                        PartColumns::fragments, p.out, p.codes);
}

}  // namespace

bool sm90_attention_has_parts(const Context& c, const AttentionPointers& p) {
    return p.any_canvas &&
           !(p.head_dim == 256 ? all_parts_in_a_block<256>(c, p) : all_parts_in_a_block<512>(c, p));
}

void sm90_attention(Context& c, const AttentionPointers& p) {
    if (c.failed() || p.rows == 0) return;
    p.head_dim == 256 ? run_attention<256>(c, p) : run_attention<512>(c, p);
}

}  // namespace dgemma::backend::cuda
