// The router of a layer on Hopper in one kernel: logits, choice of experts, order of the pairs.
//
// A cluster has 16 rows, 32 or 64 by the multiprocessors that it may take, and each of its eight blocks an
// eighth of k: it holds its share of the router's weights, which it fetches before the kernel before is over,
// and multiplies 16 rows by all experts. Each block then adds up the logits of its part of the rows in the
// order of the shares, and chooses.
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
constexpr int blocks = 8;
constexpr int few_rows = 16, beside_rows = 32, many_rows = 64;  // of a cluster
constexpr int pad = 8;                                          // elements after a row in shared memory
constexpr int sum_stride = experts + 4;                         // floats
// Of a pass in which the router leaves half of the card to the dense MLP's first items, which are up to 68.
constexpr int most_rows_beside = 256;

struct RouterProblem {
    const bf16 *a, *weight;  // [rows, hidden], [experts, hidden]
    const float* per_expert_scale;
    int rows, hidden, share, k, words;  // share: of k, a multiple of 16
    bool places_too;                    // by the last block
    bool next_beside;                   // lets the next kernel begin when the one before is over, not sooner
    std::int32_t* ids;
    float *weights, *probabilities;
    Places places;
};

template <int Rows>
__global__ void __launch_bounds__(choose_threads) sm90_router_kernel(RouterProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(16) std::uint8_t memory[];
    __shared__ float scales[experts];
    auto* sums = reinterpret_cast<float*>(memory);                // [Rows, sum_stride]
    auto* a = reinterpret_cast<bf16*>(sums + Rows * sum_stride);  // [Rows, stride]
    const int stride = p.share + pad;
    bf16* weight = a + Rows * stride;  // [experts, stride]
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32, rank = cluster_rank();
    const int first_k = rank * p.share;
    constexpr int rows_of_block = Rows / blocks, tiles = Rows / 16;
    if (!p.next_beside) allow_next_kernel();

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
    if (p.next_beside) allow_next_kernel();
    const int begin = static_cast<int>(blockIdx.x) / blocks * Rows;
    const int stride_of_rows = static_cast<int>(gridDim.x) / blocks * Rows;
    const auto fetch_rows = [&](int first_row) {
        if (first_row < p.rows)
            fetch(a, p.a + static_cast<std::int64_t>(first_row) * p.hidden, Rows, p.rows - first_row);
        commit_copies();
    };
    fetch_rows(begin);
    for (int first_row = begin; first_row < p.rows; first_row += stride_of_rows) {
        wait_copies<0>();
        __syncthreads();

        // Logits of this share: a warp has 16 experts.
        float out[tiles][2][4] = {};
#pragma unroll 4
        for (int k = 0; k < p.share; k += 16) {
            std::uint32_t x[4], w[4];
            load_matrices(w, shared_address(weight + (warp * 16 + lane % 8 + lane / 16 * 8) * stride + k +
                                            lane / 8 % 2 * 8));
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                load_matrices(x, shared_address(a + (16 * i + lane % 16) * stride + k + lane / 16 * 8));
                multiply_add(out[i][0], x, w[0], w[1]);
                multiply_add(out[i][1], x, w[2], w[3]);
            }
        }
        if (first_row != begin) cluster_wait();  // the sums of the rows before have been read
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float* to = sums + (16 * i + lane / 4) * sum_stride + warp * 16 + 8 * j + lane % 4 * 2;
                *reinterpret_cast<float2*>(to) = make_float2(out[i][j][0], out[i][j][1]);
                *reinterpret_cast<float2*>(to + 8 * sum_stride) = make_float2(out[i][j][2], out[i][j][3]);
            }
        }
        cluster_arrive();
        cluster_wait();
        fetch_rows(first_row + stride_of_rows);  // every warp is through with these

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
    wait_copies<0>();
    if (p.places_too && last_of_grid(p.places)) {
        place_by_masks(p.ids, p.rows * p.k, p.k, experts, p.words, p.places, reinterpret_cast<int*>(a));
        if (t == 0) *p.places.tickets = 0;
    }
    cluster_wait();
#endif
}

std::int64_t share_of(std::int64_t hidden) { return (hidden + 16 * blocks - 1) / (16 * blocks) * 16; }
std::size_t router_bytes(std::int64_t hidden, int rows_of_cluster) {
    return static_cast<std::size_t>(rows_of_cluster * sum_stride * 4 +
                                    (rows_of_cluster + experts) * (share_of(hidden) + pad) * 2);
}

template <int Rows>
void run_router(Context& c, const RouterProblem& p) {
    const std::size_t bytes = router_bytes(p.hidden, Rows);
    c.check(cudaFuncSetAttribute(sm90_router_kernel<Rows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)),
            "the router");
    if (c.failed()) return;
    static const int together =
        most_clusters(c, "the router", sm90_router_kernel<Rows>, choose_threads, bytes, blocks);
    const auto clusters = static_cast<unsigned>(std::min((p.rows + Rows - 1) / Rows, together));
    launch_clusters(c, "the router", sm90_router_kernel<Rows>, clusters * blocks, choose_threads, bytes,
                    dim3(blocks), p);
}

}  // namespace

bool sm90_router_fits(const Context& c, const DeviceMatrix& proj, std::int64_t k) {
    // The order of the pairs needs up to 28 KiB of what the operands have.
    return c.hopper() && proj.type == Element::bf16 && proj.outs == experts && proj.ins % 8 == 0 &&
           proj.ins >= 1024 && k <= 32 &&
           router_bytes(proj.ins, many_rows) <= static_cast<std::size_t>(c.shared_limit());
}

bool sm90_router_orders(std::int64_t rows, std::int64_t k, std::int64_t experts) {
    return sorts_beside(rows, k, experts);
}

void sm90_router(Context& c, const void* a, const DeviceMatrix& proj, const float* per_expert_scale,
                 std::int64_t rows, std::int64_t k, std::int32_t* ids, float* weights, float* probabilities,
                 bool next_beside, const Places& places) {
    if (c.failed() || rows == 0) return;
    const std::int64_t words = words_of(rows, experts);
    const bool beside = sorts_beside(rows, k, experts);
    const RouterProblem p{static_cast<const bf16*>(a),
                          static_cast<const bf16*>(proj.data),
                          per_expert_scale,
                          static_cast<int>(rows),
                          static_cast<int>(proj.ins),
                          static_cast<int>(share_of(proj.ins)),
                          static_cast<int>(k),
                          static_cast<int>(words),
                          beside,
                          next_beside,
                          ids,
                          weights,
                          probabilities,
                          places};
    // Fewer blocks leave the others' multiprocessors to the next kernel.
    const bool many = rows > (next_beside ? most_rows_beside : 512);
    many          ? run_router<many_rows>(c, p)
    : next_beside ? run_router<beside_rows>(c, p)
                  : run_router<few_rows>(c, p);
    if (!beside) order_pairs(c, ids, rows, k, experts, words, places);
}

}  // namespace dgemma::backend::cuda
