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
    int first[4];  // first[i]: heads of the parts before part i, also of parts that there are not
};

// Where a head lies, and what is done to it.
struct Head {
    __device__ Head(const HeadsParts& parts, int head, int head_dim, int row) {
        which = (head >= parts.first[1] ? 1 : 0) + (head >= parts.first[2] ? 1 : 0);
        part = &parts.part[which];
        at = (static_cast<std::int64_t>(row) * part->heads + head - parts.first[which]) * head_dim;
    }
    // The head in pieces of a matrix with its part's heads.
    template <class Piece, class T>
    [[nodiscard]] __device__ Piece* of(void* matrix) const {
        return reinterpret_cast<Piece*>(static_cast<T*>(matrix) + at);
    }
    int which;
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

// Components d and d + D / 2 of a normed head, turned. In bf16 each product and each sum is rounded by
// itself: that is what its own arithmetic does.
template <int N>
__device__ __forceinline__ void turn(Piece<float, N>& low, Piece<float, N>& high,
                                     const Piece<float, N>& cosine, const Piece<float, N>& sine) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float a = low.x[i], b = high.x[i];
        low.x[i] = a * cosine.x[i] + -b * sine.x[i];
        high.x[i] = b * cosine.x[i] + a * sine.x[i];
    }
}
template <int N>
__device__ __forceinline__ void turn(Piece<bf16, N>& low, Piece<bf16, N>& high, const Piece<bf16, N>& cosine,
                                     const Piece<bf16, N>& sine) {
    if constexpr (N == 1) {
        const bf16 a = low.x[0], b = high.x[0];
        low.x[0] = __hadd_rn(__hmul_rn(a, cosine.x[0]), __hmul_rn(__hneg(b), sine.x[0]));
        high.x[0] = __hadd_rn(__hmul_rn(b, cosine.x[0]), __hmul_rn(a, sine.x[0]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const __nv_bfloat162 a(low.x[i], low.x[i + 1]), b(high.x[i], high.x[i + 1]);
            const __nv_bfloat162 c(cosine.x[i], cosine.x[i + 1]), s(sine.x[i], sine.x[i + 1]);
            const __nv_bfloat162 l = __hadd2_rn(__hmul2_rn(a, c), __hmul2_rn(__hneg2(b), s));
            const __nv_bfloat162 h = __hadd2_rn(__hmul2_rn(b, c), __hmul2_rn(a, s));
            low.x[i] = l.x, low.x[i + 1] = l.y;
            high.x[i] = h.x, high.x[i + 1] = h.y;
        }
    }
}

// Rounds a piece, two elements by one conversion.
template <int N>
__device__ __forceinline__ void round_piece(const float (&x)[N], Piece<float, N>& to) {
#pragma unroll
    for (int i = 0; i < N; ++i) to.x[i] = x[i];
}
template <int N>
__device__ __forceinline__ void round_piece(const float (&x)[N], Piece<bf16, N>& to) {
    if constexpr (N == 1) {
        to.x[0] = from_float<bf16>(x[0]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(x[i], x[i + 1]);
            to.x[i] = pair.x, to.x[i + 1] = pair.y;
        }
    }
}

// One block per row, a warp for two heads at a time: lane l holds the components `Pairs` l to `Pairs` l +
// `Pairs` - 1 of both halves. The angles of a row are the same for all heads, and known before the heads are:
// positions, frequencies and weights are no kernel's results.
template <class T, int Pairs>
__global__ void __launch_bounds__(32 * warps_of_row, sizeof(T) == 2 ? 2 : 1)
    norm_heads_kernel(HeadsParts parts, int heads, float eps, const std::int32_t* positions) {
    constexpr int half = 32 * Pairs, together = 2;
    __shared__ Piece<T, Pairs> cosines[32], sines[32];
    __shared__ Piece<float, Pairs> weights[3][64];  // ones where there are none
    allow_next_kernel();
    const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const float* frequencies = parts.part[0].frequencies;
#pragma unroll
    for (int first = 0; first < 2 * half; first += 32 * warps_of_row) {
        const int d = first + static_cast<int>(threadIdx.x);
        if (d >= 2 * half) break;
        float weight[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) weight[i] = parts.part[i].weight != nullptr ? parts.part[i].weight[d] : 1;
#pragma unroll
        for (int i = 0; i < 3; ++i) weights[i][d / Pairs].x[d % Pairs] = weight[i];
    }
    if (const int d = static_cast<int>(threadIdx.x); frequencies != nullptr && d < half) {
        float sine, cosine;
        sincosf(static_cast<float>(positions[row]) * frequencies[d], &sine, &cosine);
        sines[d / Pairs].x[d % Pairs] = from_float<T>(sine);
        cosines[d / Pairs].x[d % Pairs] = from_float<T>(cosine);
    }
    __syncthreads();
    wait_for_previous_kernel();
    for (int first = warp; first < heads; first += together * warps_of_row) {
        const Head two[together] = {Head(parts, first, 2 * half, row),
                                    Head(parts, min(first + warps_of_row, heads - 1), 2 * half, row)};
        Piece<T, Pairs> low[together], high[together];
#pragma unroll
        for (int n = 0; n < together; ++n) {
            const auto* x = two[n].of<const Piece<T, Pairs>, T>(two[n].part->x);
            low[n] = x[lane], high[n] = x[lane + 32];
        }
#pragma unroll
        for (int n = 0; n < together; ++n) {
            if (first + n * warps_of_row >= heads) break;
            const Head& head = two[n];
            float a[Pairs], b[Pairs], sum = 0;
#pragma unroll
            for (int i = 0; i < Pairs; ++i) {
                a[i] = to_float(low[n].x[i]), b[i] = to_float(high[n].x[i]);
                sum += a[i] * a[i] + b[i] * b[i];
            }
            const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(2 * half) + eps);
#pragma unroll
            for (int i = 0; i < Pairs; ++i) a[i] *= scale, b[i] *= scale;
            if (head.part->plain != nullptr) {
                auto* plain = head.of<Piece<T, Pairs>, T>(head.part->plain);
                round_piece(a, low[n]), round_piece(b, high[n]);
                plain[lane] = low[n], plain[lane + 32] = high[n];
            }
            const Piece<float, Pairs>* weight = weights[head.which];
            const Piece<float, Pairs> weight_low = weight[lane], weight_high = weight[lane + 32];
#pragma unroll
            for (int i = 0; i < Pairs; ++i) a[i] *= weight_low.x[i], b[i] *= weight_high.x[i];
            round_piece(a, low[n]), round_piece(b, high[n]);
            if (head.part->frequencies != nullptr) turn(low[n], high[n], cosines[lane], sines[lane]);
            auto* x = head.of<Piece<T, Pairs>, T>(head.part->x);
            x[lane] = low[n], x[lane + 32] = high[n];
        }
    }
}

// The same for head sizes that are no multiple of 64: lane l holds the components l, l + 32, ... of both
// halves.
template <class T>
__global__ void __launch_bounds__(32 * warps_of_row)
    norm_any_heads_kernel(HeadsParts parts, int heads, int half, float eps, const std::int32_t* positions) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
    for (int h = static_cast<int>(threadIdx.x) / 32; h < heads; h += warps_of_row) {
        const Head head(parts, h, 2 * half, row);
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
    for (int i = 0; i < 3; ++i) {
        if (i < count) all.part[i] = parts[i];
        all.first[i + 1] = all.first[i] + all.part[i].heads;
    }
    const int heads = all.first[3];
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        const auto with = [&](auto kernel) {
            launch(c, "norming heads", kernel, static_cast<unsigned>(rows), 32 * warps_of_row, 0, all, heads,
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
                       32 * warps_of_row, 0, all, heads, head_dim / 2, eps, positions);
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
