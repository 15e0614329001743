// The router: its input, and the choice of experts.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/route_choice.cuh"
#include "backend/cuda/route_order.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_experts = 1024;
constexpr int most_chosen = 32;
template <class T>
__global__ void router_input_kernel(const T* h, const float* scale, float input_scale, int cols, float eps,
                                    T* out) {
    begin_kernel();
    __shared__ float shared[32];
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * cols;
    const int first = static_cast<int>(threadIdx.x) * 8;
    float x[8] = {}, s[8];
    if (first < cols) load8(h + row + first, x);
    float sum = 0;
#pragma unroll
    for (const float v : x) sum += v * v;
    const float norm = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(cols) + eps);
    if (first >= cols) return;
    load8(scale + first, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded<T>(rounded<T>(x[i] * norm) * s[i]) * input_scale;
    store8(out + row + first, x);
}

// The logits of a row, as `choose` wants them.
template <int Quads>
__device__ void add_logits(const float* sums, int parts, int row, int rows, int experts,
                           float (&p)[4 * Quads]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto expert = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) p[i] = 0;
    const std::int64_t part_step = static_cast<std::int64_t>(rows) * experts;
    const float* from = sums + static_cast<std::int64_t>(row) * experts;
    if (experts % 4 == 0) {
        constexpr int ahead = Quads > 2 ? 2 : 8;  // parts that are fetched before the first is added
        for (int part = 0; part < parts; part += ahead, from += ahead * part_step) {
            float4 x[ahead][Quads];
#pragma unroll
            for (int a = 0; a < ahead; ++a) {
#pragma unroll
                for (int q = 0; q < Quads; ++q) {
                    x[a][q] = part + a < parts && expert(4 * q) < experts
                                  ? *reinterpret_cast<const float4*>(from + a * part_step + expert(4 * q))
                                  : make_float4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (int a = 0; a < ahead; ++a) {
#pragma unroll
                for (int q = 0; q < Quads; ++q) {
                    p[4 * q] += x[a][q].x, p[4 * q + 1] += x[a][q].y;
                    p[4 * q + 2] += x[a][q].z, p[4 * q + 3] += x[a][q].w;
                }
            }
        }
    } else {
        for (int part = 0; part < parts; ++part, from += part_step) {
#pragma unroll
            for (int i = 0; i < 4 * Quads; ++i) {
                if (expert(i) < experts) p[i] += from[expert(i)];
            }
        }
    }
}

// words > 0: of a mask. places_too: the places of the pairs are found by the last block.
template <class T, int Quads>
__global__ void __launch_bounds__(choose_threads)
    choose_experts_kernel(const float* sums, int parts, const float* per_expert_scale, int rows, int experts,
                          int k, std::int32_t* ids, float* weights, float* probabilities, Places places,
                          int words, bool places_too) {
    extern __shared__ int shared[];
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row < rows) {
        float p[4 * Quads];
        add_logits<Quads>(sums, parts, row, rows, experts, p);
        const int own = choose<T, Quads>(p, per_expert_scale, row, experts, k, ids, weights, probabilities);
        if (words > 0 && own < experts) atomicOr(places.masks + own * words + row / 32, 1u << row % 32);
    }
    if (!places_too) return;
    if (last_of_grid(places)) {
        place_by_masks(ids, rows * k, k, experts, words, places, shared);
        if (threadIdx.x == 0) *places.tickets = 0;
    }
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    sort_pairs_kernel(const std::int32_t* ids, int pairs, int k, int experts, Places places) {
    extern __shared__ int counts[];
    begin_kernel();
    sort_by_expert<Threads>(ids, pairs, k, experts, places, counts);
}

}  // namespace

void sort_pairs(Context& c, const std::int32_t* ids, std::int64_t rows, std::int64_t k, std::int64_t experts,
                const Places& places) {
    if (c.failed() || rows == 0) return;
    if (experts > most_experts) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts: use the CPU for this model");
        return;
    }
    const auto run = [&](auto kernel, unsigned threads) {
        const std::size_t bytes = static_cast<std::size_t>((threads / 32 + 1) * experts) * sizeof(int);
        launch(c, "sorting rows by expert", kernel, 1, threads, bytes, ids, static_cast<int>(rows * k),
               static_cast<int>(k), static_cast<int>(experts), places);
    };
    // A large block's counts have to fit the shared memory that needs no asking.
    const bool large = experts <= 256 && rows * k > most_pairs_beside;
    large ? run(sort_pairs_kernel<1024>, 1024) : run(sort_pairs_kernel<choose_threads>, choose_threads);
}

void order_pairs(Context& c, const std::int32_t* ids, std::int64_t rows, std::int64_t k, std::int64_t experts,
                 std::int64_t words, const Places& places) {
    if (words == 0) {
        sort_pairs(c, ids, rows, k, experts, places);
    } else {
        launch(c, "ordering rows by expert", place_pairs_kernel, static_cast<unsigned>(experts),
               choose_threads, 0, ids, static_cast<int>(k), static_cast<int>(experts),
               static_cast<int>(words), places);
    }
}

void router_input(Context& c, Element type, const void* h, const float* scale, float input_scale,
                  std::int64_t rows, std::int64_t cols, float eps, void* out) {
    if (c.failed() || rows == 0) return;
    if (cols % 8 != 0 || cols > 8192) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes a hidden size that is a multiple of 8 and at most "
               "8192: use the CPU for this model");
        return;
    }
    const auto threads = static_cast<unsigned>((cols / 8 + 31) / 32 * 32);
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(cols);
    if (type == Element::bf16) {
        launch(c, "the router", router_input_kernel<bf16>, n, threads, 0, static_cast<const bf16*>(h), scale,
               input_scale, width, eps, static_cast<bf16*>(out));
    } else {
        launch(c, "the router", router_input_kernel<float>, n, threads, 0, static_cast<const float*>(h),
               scale, input_scale, width, eps, static_cast<float*>(out));
    }
}

void choose_experts(Context& c, Element type, const float* sums, std::int64_t parts,
                    const float* per_expert_scale, std::int64_t rows, std::int64_t experts, std::int64_t k,
                    std::int32_t* ids, float* weights, float* probabilities, const Places& places) {
    if (c.failed() || rows == 0) return;
    if (experts > most_experts || k > most_chosen) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts and 32 of them per token: use the CPU for this "
               "model");
        return;
    }
    constexpr int rows_of_block = choose_threads / 32;
    const auto blocks = static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block);
    const std::int64_t words = words_of(rows, experts);
    const bool beside = sorts_beside(rows, k, experts);
    const auto bytes = static_cast<std::size_t>(beside ? experts * (4 * (words + 1) + 2 * words) : 0);
    const auto run = [&](auto kernel) {
        launch(c, "the router", kernel, blocks, choose_threads, bytes, sums, static_cast<int>(parts),
               per_expert_scale, static_cast<int>(rows), static_cast<int>(experts), static_cast<int>(k), ids,
               weights, probabilities, places, static_cast<int>(words), beside);
    };
    if (type == Element::bf16) {
        experts <= 128   ? run(choose_experts_kernel<bf16, 1>)
        : experts <= 256 ? run(choose_experts_kernel<bf16, 2>)
                         : run(choose_experts_kernel<bf16, 8>);
    } else {
        experts <= 128   ? run(choose_experts_kernel<float, 1>)
        : experts <= 256 ? run(choose_experts_kernel<float, 2>)
                         : run(choose_experts_kernel<float, 8>);
    }
    if (!beside) order_pairs(c, ids, rows, k, experts, words, places);
}

}  // namespace dgemma::backend::cuda
