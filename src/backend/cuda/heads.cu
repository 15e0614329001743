// Norm and rotation of query, key and value heads, and the writing of keys and values to the cache.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_pairs = 8;  // per lane: head sizes up to 512
constexpr int heads_per_block = 4;

struct HeadsParts {
    HeadsPart part[3];
    int first[4];  // first[i]: heads of the parts before part i
};

// One warp per head of a row: lane l holds the components l + 32 i of both halves.
template <class T>
__global__ void norm_heads_kernel(HeadsParts parts, int count, int half, float eps,
                                  const std::int32_t* positions) {
    begin_kernel();
    const int head = static_cast<int>(blockIdx.x) * heads_per_block + static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (head >= parts.first[count]) return;
    int which = 0;
    while (which + 1 < count && head >= parts.first[which + 1]) ++which;
    const HeadsPart part = parts.part[which];
    const int head_dim = 2 * half;
    const std::int64_t at =
        (static_cast<std::int64_t>(blockIdx.y) * part.heads + head - parts.first[which]) * head_dim;
    T* x = static_cast<T*>(part.x) + at;
    T* plain = part.plain == nullptr ? nullptr : static_cast<T*>(part.plain) + at;

    float low[most_pairs], high[most_pairs], sum = 0;
#pragma unroll
    for (int i = 0; i < most_pairs; ++i) {
        const int d = lane + 32 * i;
        low[i] = d < half ? to_float(x[d]) : 0.0f;
        high[i] = d < half ? to_float(x[d + half]) : 0.0f;
        sum += low[i] * low[i] + high[i] * high[i];
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(head_dim) + eps);
    const float position = part.frequencies == nullptr ? 0.0f : static_cast<float>(positions[blockIdx.y]);
#pragma unroll
    for (int i = 0; i < most_pairs; ++i) {
        const int d = lane + 32 * i;
        if (d >= half) break;
        float a = low[i] * scale, b = high[i] * scale;
        if (plain != nullptr) {
            plain[d] = from_float<T>(a);
            plain[d + half] = from_float<T>(b);
        }
        if (part.weight != nullptr) a *= part.weight[d], b *= part.weight[d + half];
        a = rounded<T>(a), b = rounded<T>(b);
        if (part.frequencies != nullptr) {
            float sine, cosine;
            sincosf(position * part.frequencies[d], &sine, &cosine);
            sine = rounded<T>(sine), cosine = rounded<T>(cosine);
            const float turned = rounded<T>(a * cosine) + rounded<T>(-b * sine);
            b = rounded<T>(b * cosine) + rounded<T>(a * sine);
            a = turned;
        }
        x[d] = from_float<T>(a);
        x[d + half] = from_float<T>(b);
    }
}

template <class T, class C>
__global__ void store_kv_kernel(const T* k, const T* v, const DeviceSegment* segments, int count,
                                const std::int32_t* positions, int kv_heads, int head_dim) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x);
    const DeviceSegment* segment = segments;
    for (int i = 0; i < count; ++i) {
        if (row >= segments[i].first_row && row < segments[i].first_row + segments[i].rows)
            segment = segments + i;
    }
    const std::int32_t position = positions[row];
    const int page = position / static_cast<int>(page_tokens) % segment->ring_pages;
    const int slot = position % static_cast<int>(page_tokens);
    C* keys = static_cast<C*>(const_cast<void*>(segment->keys[page]));
    C* values = static_cast<C*>(const_cast<void*>(segment->values[page]));
    const int width = kv_heads * head_dim;
    for (int c = static_cast<int>(threadIdx.x) * 8; c < width; c += static_cast<int>(blockDim.x) * 8) {
        const std::int64_t to =
            (static_cast<std::int64_t>(c / head_dim) * page_tokens + slot) * head_dim + c % head_dim;
        float x[8];
        load8(k + static_cast<std::int64_t>(row) * width + c, x);
        store8(keys + to, x);
        load8(v + static_cast<std::int64_t>(row) * width + c, x);
        store8(values + to, x);
    }
}

}  // namespace

void norm_heads(Context& c, Element type, const HeadsPart* parts, int count, std::int64_t rows, int head_dim,
                float eps, const std::int32_t* positions) {
    if (c.failed() || rows == 0) return;
    if (head_dim % 16 != 0 || head_dim > 64 * most_pairs) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes head sizes that are multiples of 16, at most 512: use "
               "the CPU for this model");
        return;
    }
    HeadsParts all{};
    for (int i = 0; i < count; ++i) {
        all.part[i] = parts[i];
        all.first[i + 1] = all.first[i] + parts[i].heads;
    }
    const dim3 grid(static_cast<unsigned>((all.first[count] + heads_per_block - 1) / heads_per_block),
                    static_cast<unsigned>(rows));
    if (type == Element::bf16) {
        launch(c, "norming heads", norm_heads_kernel<bf16>, grid, 32 * heads_per_block, 0, all, count,
               head_dim / 2, eps, positions);
    } else {
        launch(c, "norming heads", norm_heads_kernel<float>, grid, 32 * heads_per_block, 0, all, count,
               head_dim / 2, eps, positions);
    }
}

void store_kv(Context& c, Element type, Element cache, const void* k, const void* v,
              const DeviceSegment* segments, int count, const std::int32_t* positions, std::int64_t rows,
              int kv_heads, int head_dim) {
    if (c.failed() || rows == 0) return;
    const auto run = [&](const auto* keys, const auto* values, auto tag) {
        launch(c, "storing keys and values",
               store_kv_kernel<std::remove_cvref_t<decltype(*keys)>, decltype(tag)>,
               static_cast<unsigned>(rows), 128, 0, keys, values, segments, count, positions, kv_heads,
               head_dim);
    };
    if (type == Element::bf16) {
        const auto *keys = static_cast<const bf16*>(k), *values = static_cast<const bf16*>(v);
        if (cache == Element::bf16) run(keys, values, bf16{});
        if (cache == Element::f32) run(keys, values, float{});
    } else {
        const auto *keys = static_cast<const float*>(k), *values = static_cast<const float*>(v);
        if (cache == Element::bf16) run(keys, values, bf16{});
        if (cache == Element::f32) run(keys, values, float{});
    }
}

}  // namespace dgemma::backend::cuda
