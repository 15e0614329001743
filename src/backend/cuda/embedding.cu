// Embedding lookup, the scaling of soft embeddings, and random weights for measurements.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

template <class T, class W>
__global__ void embed_kernel(const std::int32_t* ids, const W* table, float scale, int cols, T* out) {
    begin_kernel();
    const W* from = table + static_cast<std::int64_t>(ids[blockIdx.x]) * cols;
    T* to = out + static_cast<std::int64_t>(blockIdx.x) * cols;
    for (int c = static_cast<int>(threadIdx.x); c < cols; c += static_cast<int>(blockDim.x))
        to[c] = from_float<T>(to_float(from[c]) * scale);
}

template <class T>
__global__ void scale_kernel(const float* sums, std::int64_t parts, std::int64_t count, float scale, T* out) {
    begin_kernel();
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    for (std::int64_t p = 0; p < parts; ++p) sum += sums[p * count + i];
    out[i] = from_float<T>(rounded<T>(sum) * scale);
}

__device__ std::uint64_t mix(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

template <class T>
__global__ void random_kernel(T* to, std::int64_t count, float scale, float mean, std::uint64_t seed) {
    begin_kernel();
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += stride) {
        const std::uint64_t bits = mix(seed * 0x2545F4914F6CDD1Dull + static_cast<std::uint64_t>(i));
        // The sum of four uniform numbers: near enough to a normal one, of variance 1/3.
        float sum = -2.0f;
#pragma unroll
        for (int p = 0; p < 4; ++p)
            sum += static_cast<float>((bits >> (16 * p)) & 0xFFFFu) * (1.0f / 65536.0f);
        to[i] = from_float<T>(mean + scale * sum * 1.7320508f);
    }
}

}  // namespace

void embed(Context& c, Element type, const std::int32_t* ids, const DeviceMatrix& table, float scale,
           std::int64_t rows, void* out) {
    if (c.failed() || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int cols = static_cast<int>(table.ins);
    const auto run = [&](auto* to, const auto* from) {
        launch(c, "looking up embeddings",
               embed_kernel<std::remove_cvref_t<decltype(*to)>, std::remove_cvref_t<decltype(*from)>>, n, 256,
               0, ids, from, scale, cols, to);
    };
    if (type == Element::bf16) {
        if (table.type == Element::bf16) run(static_cast<bf16*>(out), static_cast<const bf16*>(table.data));
        if (table.type == Element::f32) run(static_cast<bf16*>(out), static_cast<const float*>(table.data));
    } else {
        if (table.type == Element::bf16) run(static_cast<float*>(out), static_cast<const bf16*>(table.data));
        if (table.type == Element::f32) run(static_cast<float*>(out), static_cast<const float*>(table.data));
    }
}

void scale_rounded(Context& c, Element type, const float* sums, std::int64_t parts, std::int64_t count,
                   float scale, void* out) {
    if (c.failed() || count == 0) return;
    const auto blocks = static_cast<unsigned>((count + 255) / 256);
    if (type == Element::bf16) {
        launch(c, "scaling soft embeddings", scale_kernel<bf16>, blocks, 256, 0, sums, parts, count, scale,
               static_cast<bf16*>(out));
    } else {
        launch(c, "scaling soft embeddings", scale_kernel<float>, blocks, 256, 0, sums, parts, count, scale,
               static_cast<float*>(out));
    }
}

void fill_random(Context& c, void* to, Element type, std::int64_t count, float scale, float mean,
                 std::uint64_t seed) {
    if (c.failed() || count == 0) return;
    if (type == Element::bf16) {
        launch(c, "making random weights", random_kernel<bf16>, 4096, 256, 0, static_cast<bf16*>(to), count,
               scale, mean, seed);
    } else {
        launch(c, "making random weights", random_kernel<float>, 4096, 256, 0, static_cast<float*>(to), count,
               scale, mean, seed);
    }
}

}  // namespace dgemma::backend::cuda
