// Norm and rotation of query, key and value heads, and the writing of keys and values to the cache.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int most_dim = 512;
constexpr int warps_of_row = 16;

struct HeadsParts {
    HeadsPart part[3];
    int first[4];  // first[i]: heads of the parts before part i
};

// Where a head lies, and what is done to it.
struct Head {
    __device__ Head(const HeadsParts& parts, int count, int head, int head_dim, int row) {
        int which = 0;
        while (which + 1 < count && head >= parts.first[which + 1]) ++which;
        part = &parts.part[which];
        at = (static_cast<std::int64_t>(row) * part->heads + head - parts.first[which]) * head_dim;
    }
    const HeadsPart* part;
    std::int64_t at;
};

// What becomes of a pair of components d and d + D / 2 once the head's norm is known.
template <class T>
__device__ __forceinline__ void turn_pair(const HeadsPart& part, float& a, float& b, int d, int half,
                                          float cosine, float sine) {
    if (part.weight != nullptr) a *= part.weight[d], b *= part.weight[d + half];
    a = rounded<T>(a), b = rounded<T>(b);
    if (part.frequencies == nullptr) return;
    const float turned = rounded<T>(a * cosine) + rounded<T>(-b * sine);
    b = rounded<T>(b * cosine) + rounded<T>(a * sine);
    a = turned;
}

// `N` consecutive elements.
template <class T, int N>
struct __align__(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Piece {
    T x[N];
};

// One block per row, a warp for two heads at a time: lane l holds the components `Pairs` l to `Pairs` l +
// `Pairs` - 1 of both halves. The angles of a row are the same for all heads, and known before the heads are:
// positions and frequencies are no kernel's results.
template <class T, int Pairs>
__global__ void __launch_bounds__(32 * warps_of_row)
    norm_heads_kernel(HeadsParts parts, int count, float eps, const std::int32_t* positions) {
    constexpr int half = 32 * Pairs, together = 2;
    __shared__ float cosines[half], sines[half];
    allow_next_kernel();
    const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
    const float* frequencies = parts.part[0].frequencies;
    if (frequencies != nullptr) {
        const auto position = static_cast<float>(positions[row]);
        for (int d = static_cast<int>(threadIdx.x); d < half; d += 32 * warps_of_row) {
            float sine, cosine;
            sincosf(position * frequencies[d], &sine, &cosine);
            sines[d] = rounded<T>(sine), cosines[d] = rounded<T>(cosine);
        }
    }
    wait_for_previous_kernel();
    __syncthreads();
    const int heads = parts.first[count], warp = static_cast<int>(threadIdx.x) / 32;
    for (int first = warp; first < heads; first += together * warps_of_row) {
        Piece<T, Pairs> low[together], high[together];
#pragma unroll
        for (int n = 0; n < together; ++n) {
            const Head head(parts, count, min(first + n * warps_of_row, heads - 1), 2 * half, row);
            const T* x = static_cast<const T*>(head.part->x) + head.at + lane * Pairs;
            low[n] = *reinterpret_cast<const Piece<T, Pairs>*>(x);
            high[n] = *reinterpret_cast<const Piece<T, Pairs>*>(x + half);
        }
#pragma unroll
        for (int n = 0; n < together; ++n) {
            if (first + n * warps_of_row >= heads) break;
            const Head head(parts, count, first + n * warps_of_row, 2 * half, row);
            float sum = 0;
#pragma unroll
            for (int i = 0; i < Pairs; ++i) {
                const float a = to_float(low[n].x[i]), b = to_float(high[n].x[i]);
                sum += a * a + b * b;
            }
            const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(2 * half) + eps);
            Piece<T, Pairs> plain_low, plain_high;
#pragma unroll
            for (int i = 0; i < Pairs; ++i) {
                const int d = lane * Pairs + i;
                float a = to_float(low[n].x[i]) * scale, b = to_float(high[n].x[i]) * scale;
                plain_low.x[i] = from_float<T>(a), plain_high.x[i] = from_float<T>(b);
                turn_pair<T>(*head.part, a, b, d, half, cosines[d], sines[d]);
                low[n].x[i] = from_float<T>(a), high[n].x[i] = from_float<T>(b);
            }
            T* x = static_cast<T*>(head.part->x) + head.at + lane * Pairs;
            *reinterpret_cast<Piece<T, Pairs>*>(x) = low[n];
            *reinterpret_cast<Piece<T, Pairs>*>(x + half) = high[n];
            if (head.part->plain != nullptr) {
                T* plain = static_cast<T*>(head.part->plain) + head.at + lane * Pairs;
                *reinterpret_cast<Piece<T, Pairs>*>(plain) = plain_low;
                *reinterpret_cast<Piece<T, Pairs>*>(plain + half) = plain_high;
            }
        }
    }
}

// The same for head sizes that are no multiple of 64: lane l holds the components l, l + 32, ... of both
// halves.
template <class T>
__global__ void __launch_bounds__(32 * warps_of_row)
    norm_any_heads_kernel(HeadsParts parts, int count, int half, float eps, const std::int32_t* positions) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
    for (int h = static_cast<int>(threadIdx.x) / 32; h < parts.first[count]; h += warps_of_row) {
        const Head head(parts, count, h, 2 * half, row);
        T* x = static_cast<T*>(head.part->x) + head.at;
        float sum = 0;
        for (int d = lane; d < half; d += 32) {
            const float a = to_float(x[d]), b = to_float(x[d + half]);
            sum += a * a + b * b;
        }
        const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(2 * half) + eps);
        for (int d = lane; d < half; d += 32) {
            float a = to_float(x[d]) * scale, b = to_float(x[d + half]) * scale, sine = 0, cosine = 1;
            if (head.part->plain != nullptr) {
                T* plain = static_cast<T*>(head.part->plain) + head.at;
                plain[d] = from_float<T>(a), plain[d + half] = from_float<T>(b);
            }
            if (head.part->frequencies != nullptr)
                sincosf(static_cast<float>(positions[row]) * head.part->frequencies[d], &sine, &cosine);
            turn_pair<T>(*head.part, a, b, d, half, rounded<T>(cosine), rounded<T>(sine));
            x[d] = from_float<T>(a), x[d + half] = from_float<T>(b);
        }
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
    if (head_dim % 16 != 0 || head_dim > most_dim) {
        c.fail(ErrorKind::unsupported,
               "the CUDA backend takes head sizes that are multiples of 16, at most 512: use the CPU for "
               "this model");
        return;
    }
    HeadsParts all{};
    for (int i = 0; i < count; ++i) {
        all.part[i] = parts[i];
        all.first[i + 1] = all.first[i] + parts[i].heads;
    }
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        const auto with = [&](auto kernel) {
            launch(c, "norming heads", kernel, static_cast<unsigned>(rows), 32 * warps_of_row, 0, all, count,
                   eps, positions);
        };
        switch (head_dim) {
            case 64:
                return with(norm_heads_kernel<T, 1>);
            case 128:
                return with(norm_heads_kernel<T, 2>);
            case 256:
                return with(norm_heads_kernel<T, 4>);
            case 512:
                return with(norm_heads_kernel<T, 8>);
            default:
                launch(c, "norming heads", norm_any_heads_kernel<T>, static_cast<unsigned>(rows),
                       32 * warps_of_row, 0, all, count, head_dim / 2, eps, positions);
        }
    };
    type == Element::bf16 ? run(bf16{}) : run(float{});
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
