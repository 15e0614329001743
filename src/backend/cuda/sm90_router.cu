// The router of a layer on Hopper in one kernel: logits, choice of experts, order of the pairs.
//
// A cluster has 16 rows, and each of its eight blocks an eighth of k: it holds its share of the router's
// weights, which it fetches before the kernel before is over, and multiplies 16 rows by all experts. Each
// block then adds up the logits of two rows in the order of the shares, and chooses.
#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/route_choice.cuh"
#include "backend/cuda/route_order.cuh"
#include "backend/cuda/sm90_cluster.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int experts = 128;
constexpr int rows_of_cluster = 16, blocks = 8;
constexpr int most_clusters = 24;        // that run at a time for certain, two blocks to a multiprocessor
constexpr int pad = 8;                   // elements after a row in shared memory
constexpr int sum_stride = experts + 4;  // floats

struct RouterProblem {
    const bf16 *a, *weight;  // [rows, hidden], [experts, hidden]
    const float* per_expert_scale;
    int rows, hidden, share, k, words;  // share: of k, a multiple of 16
    std::int32_t* ids;
    float *weights, *probabilities;
    Places places;
};

__global__ void __launch_bounds__(choose_threads) sm90_router_kernel(RouterProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(16) std::uint8_t memory[];
    __shared__ float scales[experts];
    auto* sums = reinterpret_cast<float*>(memory);                           // [16, sum_stride]
    auto* a = reinterpret_cast<bf16*>(sums + rows_of_cluster * sum_stride);  // [16, stride]
    const int stride = p.share + pad;
    bf16* weight = a + rows_of_cluster * stride;  // [experts, stride]
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32, rank = cluster_rank();
    const int first_k = rank * p.share;
    constexpr int rows_of_block = rows_of_cluster / blocks;
    allow_next_kernel();

    const int pieces = p.share / 8;  // of 16 bytes in a row
    const auto fetch = [&](bf16* to, const bf16* from, int rows, int most) {
        for (int i = t; i < rows * pieces; i += choose_threads) {
            const int row = i / pieces, column = i % pieces * 8;
            const bool inside = row < most && first_k + column < p.hidden;
            copy16_async(shared_address(to + row * stride + column),
                         inside ? from + static_cast<std::int64_t>(row) * p.hidden + first_k + column : from,
                         inside);
        }
    };
    fetch(weight, p.weight, experts, experts);
    if (t < experts) scales[t] = p.per_expert_scale[t];
    wait_for_previous_kernel();
    const int begin = static_cast<int>(blockIdx.x) / blocks * rows_of_cluster;
    for (int first_row = begin; first_row < p.rows;
         first_row += static_cast<int>(gridDim.x) / blocks * rows_of_cluster) {
        fetch(a, p.a + static_cast<std::int64_t>(first_row) * p.hidden, rows_of_cluster, p.rows - first_row);
        commit_copies();
        wait_copies<0>();
        __syncthreads();

        // Logits of this share: a warp has 16 experts.
        float out[2][4] = {};
#pragma unroll 4
        for (int k = 0; k < p.share; k += 16) {
            std::uint32_t x[4], w[4];
            load_matrices(x, shared_address(a + lane % 16 * stride + k + lane / 16 * 8));
            load_matrices(w, shared_address(weight + (warp * 16 + lane % 8 + lane / 16 * 8) * stride + k +
                                            lane / 8 % 2 * 8));
            multiply_add(out[0], x, w[0], w[1]);
            multiply_add(out[1], x, w[2], w[3]);
        }
        if (first_row != begin) cluster_wait();  // the sums of the rows before have been read
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float* to = sums + lane / 4 * sum_stride + warp * 16 + 8 * j + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(out[j][0], out[j][1]);
            *reinterpret_cast<float2*>(to + 8 * sum_stride) = make_float2(out[j][2], out[j][3]);
        }
        cluster_arrive();
        cluster_wait();

        // This block's rows.
        const int own = rank * rows_of_block + warp, row = first_row + own;
        float logits[4] = {};
        if (warp < rows_of_block) {
            float4 part[blocks];
#pragma unroll
            for (int b = 0; b < blocks; ++b)
                part[b] = load_from(address_in(sums + own * sum_stride + 4 * lane, b));
#pragma unroll
            for (int b = 0; b < blocks; ++b) {
                logits[0] += part[b].x, logits[1] += part[b].y;
                logits[2] += part[b].z, logits[3] += part[b].w;
            }
        }
        cluster_arrive();  // this block has read the sums of all
        if (warp < rows_of_block && row < p.rows) {
            const int chosen =
                choose<bf16, 1>(logits, scales, row, experts, p.k, p.ids, p.weights, p.probabilities);
            if (p.words > 0 && chosen < experts)
                atomicOr(p.places.masks + chosen * p.words + row / 32, 1u << row % 32);
        }
    }
    if (p.words > 0 && last_of_grid(p.places)) {
        place_by_masks(p.ids, p.rows * p.k, p.k, experts, p.words, p.places, reinterpret_cast<int*>(a));
        if (t == 0) *p.places.tickets = 0;
    }
    cluster_wait();
#endif
}

std::int64_t share_of(std::int64_t hidden) { return (hidden + 16 * blocks - 1) / (16 * blocks) * 16; }
std::size_t router_bytes(std::int64_t hidden) {
    return static_cast<std::size_t>(rows_of_cluster * sum_stride * 4 +
                                    (rows_of_cluster + experts) * (share_of(hidden) + pad) * 2);
}

}  // namespace

bool sm90_router_fits(const Context& c, const DeviceMatrix& proj, std::int64_t k) {
    // The order of the pairs needs up to 28 KiB of what the operands have.
    return c.hopper() && proj.type == Element::bf16 && proj.outs == experts && proj.ins % 8 == 0 &&
           proj.ins >= 1024 && k <= 32 &&
           router_bytes(proj.ins) <= static_cast<std::size_t>(c.shared_limit());
}

void sm90_router(Context& c, const void* a, const DeviceMatrix& proj, const float* per_expert_scale,
                 std::int64_t rows, std::int64_t k, std::int32_t* ids, float* weights, float* probabilities,
                 const Places& places) {
    if (c.failed() || rows == 0) return;
    const std::size_t bytes = router_bytes(proj.ins);
    c.check(cudaFuncSetAttribute(sm90_router_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)),
            "the router");
    const std::int64_t words = sorts_beside(rows, k, experts) ? words_of(rows) : 0;
    const RouterProblem p{static_cast<const bf16*>(a),
                          static_cast<const bf16*>(proj.data),
                          per_expert_scale,
                          static_cast<int>(rows),
                          static_cast<int>(proj.ins),
                          static_cast<int>(share_of(proj.ins)),
                          static_cast<int>(k),
                          static_cast<int>(words),
                          ids,
                          weights,
                          probabilities,
                          places};
    const auto clusters = static_cast<unsigned>(
        std::min<std::int64_t>((rows + rows_of_cluster - 1) / rows_of_cluster, most_clusters));
    launch_clusters(c, "the router", sm90_router_kernel, clusters * blocks, choose_threads, bytes,
                    dim3(blocks), p);
    if (words == 0) sort_pairs(c, ids, rows, k, experts, places);
}

}  // namespace dgemma::backend::cuda
