// The router: its input, and the choice of experts.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

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

// One warp per row. Lane l holds the experts 4 l to 4 l + 3 of each of `Quads` groups of 128.
template <class T, int Quads>
__global__ void choose_experts_kernel(const float* sums, int parts, const float* per_expert_scale, int rows,
                                      int experts, int k, std::int32_t* ids, float* weights,
                                      float* probabilities) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= rows) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto expert = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
    float p[4 * Quads];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) p[i] = 0;
    for (int part = 0; part < parts; ++part) {
        const float* from = sums + (static_cast<std::int64_t>(part) * rows + row) * experts;
#pragma unroll
        for (int q = 0; q < Quads; ++q) {
            if (experts % 4 == 0 && expert(4 * q) < experts) {
                const float4 x = *reinterpret_cast<const float4*>(from + expert(4 * q));
                p[4 * q] += x.x, p[4 * q + 1] += x.y, p[4 * q + 2] += x.z, p[4 * q + 3] += x.w;
            } else {
#pragma unroll
                for (int i = 4 * q; i < 4 * q + 4; ++i) {
                    if (expert(i) < experts) p[i] += from[expert(i)];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expert(i) < experts ? rounded<T>(p[i]) : -INFINITY;
        top = fmaxf(top, p[i]);
    }
    top = warp_max(top);
    float all = 0;
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] = expf(p[i] - top);
        if (expert(i) < experts) all += p[i];
    }
    all = warp_sum(all);
#pragma unroll
    for (int i = 0; i < 4 * Quads; ++i) {
        p[i] /= all;
        if (probabilities != nullptr && expert(i) < experts)
            probabilities[static_cast<std::int64_t>(row) * experts + expert(i)] = p[i];
        // A broken row still gets k distinct experts: a NaN is never the largest, and what is taken is
        // smaller yet.
        if (!(p[i] >= 0)) p[i] = -1;
        if (expert(i) >= experts) p[i] = -3;
    }
    float chosen = 0, own_p = 0;
    int own_id = experts;
    for (int round = 0; round < k; ++round) {
        float best = -4;
        int best_id = 0x7FFFFFFF;
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (p[i] > best) best = p[i], best_id = expert(i);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
            const int other_id = __shfl_xor_sync(0xFFFFFFFFu, best_id, step);
            if (other > best || (other == best && other_id < best_id)) best = other, best_id = other_id;
        }
#pragma unroll
        for (int i = 0; i < 4 * Quads; ++i) {
            if (expert(i) == best_id) p[i] = -2;
        }
        chosen += best;  // from the largest down
        if (lane == round) own_id = best_id, own_p = best;
    }
    int place = 0;
    for (int other = 0; other < k; ++other) place += __shfl_sync(0xFFFFFFFFu, own_id, other) < own_id;
    if (lane < k) {
        const std::int64_t at = static_cast<std::int64_t>(row) * k + place;
        ids[at] = own_id;
        weights[at] = own_p / chosen * per_expert_scale[own_id];
    }
}

}  // namespace

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
                    std::int32_t* ids, float* weights, float* probabilities) {
    if (c.failed() || rows == 0) return;
    if (experts > most_experts || k > most_chosen) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes at most 1024 experts and 32 of them per token: use the "
               "CPU for this model");
        return;
    }
    const auto blocks = static_cast<unsigned>((rows + 3) / 4);
    const auto run = [&](auto kernel) {
        launch(c, "the router", kernel, blocks, 128, 0, sums, static_cast<int>(parts), per_expert_scale,
               static_cast<int>(rows), static_cast<int>(experts), static_cast<int>(k), ids, weights,
               probabilities);
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
}

}  // namespace dgemma::backend::cuda
