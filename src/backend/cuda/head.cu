// The end of a pass: statistics of every row of zt = softcap * tanh(score / softcap) / T, without zt ever
// being written, and the probabilities that the next pass's soft embedding reads.
//
// In bf16 the scores are stored as the contract rounds them (before the softcap), so zt can be had again
// exactly.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int threads = 512;
constexpr float log2e = 1.4426950408889634f;

// 2^x and 1 / x to about two ulps.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// From a score to zt. Scores in bf16 are coarse: there the hyperbolic tangent may be off by 1e-7.
template <class T>
struct Scores {
    float softcap, temperature, by_softcap, by_temperature, turn;

    explicit __device__ Scores(const LogitsForm& form)
        : softcap(form.softcap),
          temperature(form.temperature),
          by_softcap(1.0f / form.softcap),
          by_temperature(1.0f / form.temperature),
          turn(2.0f * log2e / form.softcap) {}

    // Correctly rounded: one product, one correction.
    static __device__ float divide(float x, float y, float by_y) {
        const float q = x * by_y;
        return fmaf(fmaf(-q, y, x), by_y, q);
    }
    // Eight scores to zt, in place. Where all are small, as nearly always, the tangent is a short series and
    // no slow unit is asked.
    template <bool Given>
    __device__ void zt8(float (&x)[8]) const {
        if (Given) return;
        if (sizeof(T) == 4) {
#pragma unroll
            for (float& v : x) v = zt<false>(v);
            return;
        }
        float largest = 0;
#pragma unroll
        for (const float v : x) largest = fmaxf(largest, fabsf(v));
        if (largest <= 0.55f * softcap) {
#pragma unroll
            for (float& v : x) {
                const float u = v * by_softcap, s = u * u;
                const float series =
                    fmaf(fmaf(fmaf(0.017295752f, s, -0.0531467447f), s, 0.13328464f), s, -0.333332875f);
                v = divide(softcap * fmaf(u * s, series, u), temperature, by_temperature);
            }
        } else {
#pragma unroll
            for (float& v : x) v = zt<false>(v);
        }
    }
    template <bool Given>
    __device__ float zt(float score) const {
        if (Given) return score;
        const float tangent = sizeof(T) == 4
                                  ? tanhf(divide(score, softcap, by_softcap))
                                  : fmaf(-2.0f, reciprocal(1.0f + power_of_two(score * turn)), 1.0f);
        return divide(softcap * tangent, temperature, by_temperature);
    }
};

template <class T>
__device__ void load_scores(const T* row, int first, int vocab, bool vectors, float (&x)[8]) {
    if (vectors) {
        load8(row + first, x);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = first + i < vocab ? to_float(row[first + i]) : 0.0f;
    }
}

// What a part of a row says: the largest zt and where, and sums over exp(zt - max).
struct Tally {
    float max = -INFINITY;
    int at = 0x7FFFFFFF;
    float sum = 0;      // of exp(zt - max)
    float product = 0;  // of exp(zt - max) (zt - max)
    float rounded = 0;  // of exp(rb(zt) - rb(max))
};

// The sums of `t` for a larger maximum.
template <class T>
__device__ void raise(Tally& t, float max) {
    if (t.max == -INFINITY) return;
    const float down = t.max - max, factor = exp2f(down * log2e);
    t.product = factor * (t.product + t.sum * down);
    t.sum *= factor;
    t.rounded *= exp2f((rounded<T>(t.max) - rounded<T>(max)) * log2e);
}

template <class T>
__device__ Tally merge(Tally a, Tally b) {
    const float max = fmaxf(a.max, b.max);
    const int at = a.max > b.max ? a.at : b.max > a.max ? b.at : min(a.at, b.at);
    raise<T>(a, max);
    raise<T>(b, max);
    return {max, at, a.sum + b.sum, a.product + b.product, a.rounded + b.rounded};
}

template <class T>
__device__ Tally merge_warp(Tally t) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        Tally other;
        other.max = __shfl_xor_sync(0xFFFFFFFFu, t.max, step);
        other.at = __shfl_xor_sync(0xFFFFFFFFu, t.at, step);
        other.sum = __shfl_xor_sync(0xFFFFFFFFu, t.sum, step);
        other.product = __shfl_xor_sync(0xFFFFFFFFu, t.product, step);
        other.rounded = __shfl_xor_sync(0xFFFFFFFFu, t.rounded, step);
        t = merge<T>(t, other);
    }
    return t;
}

template <class T, bool Given>
__global__ void __launch_bounds__(threads)
    statistics_kernel(const T* scores, int vocab, bool vectors, float softcap, const float* temperature,
                      LogitsForm* form, RowStats* stats, float* rounded_sums) {
    begin_kernel();
    __shared__ Tally tallies[threads / 32];
    const LogitsForm own{Given ? 0.0f : softcap, Given ? 1.0f : *temperature};
    if (blockIdx.x == 0 && threadIdx.x == 0) *form = own;
    const Scores<T> turn(own);
    const T* row = scores + static_cast<std::int64_t>(blockIdx.x) * vocab;
    Tally t;
    for (int first = static_cast<int>(threadIdx.x) * 8; first < vocab; first += threads * 8) {
        float z[8], highest = -INFINITY;
        load_scores(row, first, vocab, vectors, z);
        turn.template zt8<Given>(z);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!vectors && first + i >= vocab) z[i] = -INFINITY;
            highest = fmaxf(highest, z[i]);
        }
        if (highest > t.max) {  // rare, but for the first
            raise<T>(t, highest);
            t.max = highest;
#pragma unroll
            for (int i = 7; i >= 0; --i) {
                if (z[i] == highest) t.at = first + i;
            }
        }
        const float rounded_max = rounded<T>(t.max);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!vectors && first + i >= vocab) break;
            const float below = z[i] - t.max, weight = power_of_two(below * log2e);
            t.sum += weight;
            t.product = fmaf(weight, below, t.product);
            t.rounded += power_of_two((rounded<T>(z[i]) - rounded_max) * log2e);
        }
    }
    t = merge_warp<T>(t);
    if (threadIdx.x % 32 == 0) tallies[threadIdx.x / 32] = t;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    t = merge_warp<T>(threadIdx.x < threads / 32 ? tallies[threadIdx.x] : Tally{});
    if (threadIdx.x != 0) return;
    RowStats& out = stats[blockIdx.x];
    // A NaN or an infinity anywhere made one of these a NaN.
    out.finite = isfinite(t.max) && isfinite(t.sum) && isfinite(t.product);
    out.argmax = out.finite ? t.at : 0;
    out.max = t.max;
    const float log_sum = logf(t.sum);
    out.log_sum_exp = t.max + log_sum;
    out.entropy = log_sum - t.product / t.sum;
    rounded_sums[blockIdx.x] = t.rounded;
}

template <class T>
__global__ void row_kernel(const T* row, int vocab, const LogitsForm* form, float* out) {
    begin_kernel();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= vocab) return;
    const float score = to_float(row[i]);
    const Scores<T> turn(*form);
    out[i] = form->softcap == 0.0f ? score : turn.template zt<false>(score);
}

template <class T>
__global__ void probabilities_kernel(const T* scores, int vocab, bool vectors, const LogitsForm* form,
                                     const RowStats* stats, const float* rounded_sums, T* out) {
    begin_kernel();
    const LogitsForm own = *form;
    const Scores<T> turn(own);
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * vocab;
    const float max = rounded<T>(stats[blockIdx.y].max), sum = rounded_sums[blockIdx.y], by_sum = 1.0f / sum;
    const int first =
        (static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (first >= vocab) return;
    float z[8];
    load_scores(scores + row, first, vocab, vectors, z);
    if (own.softcap != 0.0f) turn.template zt8<false>(z);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float zt = rounded<T>(z[i]);
        z[i] = Scores<T>::divide(power_of_two((zt - max) * log2e), sum, by_sum);
    }
    if (vectors) {
        store8(out + row + first, z);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (first + i < vocab) out[row + first + i] = from_float<T>(z[i]);
        }
    }
}

template <bool Given>
void statistics(Context& c, Element type, const void* scores, std::int64_t rows, std::int64_t vocab,
                float softcap, const float* temperature, LogitsForm* form, RowStats* stats,
                float* rounded_sums) {
    if (c.failed() || rows == 0) return;
    const auto n = static_cast<unsigned>(rows);
    const int width = static_cast<int>(vocab);
    const bool vectors = vocab % 8 == 0;
    if (type == Element::bf16) {
        launch(c, "the head's statistics", statistics_kernel<bf16, Given>, n, threads, 0,
               static_cast<const bf16*>(scores), width, vectors, softcap, temperature, form, stats,
               rounded_sums);
    } else {
        launch(c, "the head's statistics", statistics_kernel<float, Given>, n, threads, 0,
               static_cast<const float*>(scores), width, vectors, softcap, temperature, form, stats,
               rounded_sums);
    }
}

}  // namespace

void logit_statistics(Context& c, Element type, const void* scores, std::int64_t rows, std::int64_t vocab,
                      float softcap, const float* temperature, LogitsForm* form, RowStats* stats,
                      float* rounded_sums) {
    statistics<false>(c, type, scores, rows, vocab, softcap, temperature, form, stats, rounded_sums);
}

void given_statistics(Context& c, Element type, const void* zt, std::int64_t rows, std::int64_t vocab,
                      LogitsForm* form, RowStats* stats, float* rounded_sums) {
    statistics<true>(c, type, zt, rows, vocab, 0, nullptr, form, stats, rounded_sums);
}

void logit_row(Context& c, Element type, const void* scores, std::int64_t row, std::int64_t vocab,
               const LogitsForm* form, float* out) {
    if (c.failed()) return;
    const auto blocks = static_cast<unsigned>((vocab + 255) / 256);
    if (type == Element::bf16) {
        launch(c, "reading a row of logits", row_kernel<bf16>, blocks, 256, 0,
               static_cast<const bf16*>(scores) + row * vocab, static_cast<int>(vocab), form, out);
    } else {
        launch(c, "reading a row of logits", row_kernel<float>, blocks, 256, 0,
               static_cast<const float*>(scores) + row * vocab, static_cast<int>(vocab), form, out);
    }
}

void logit_probabilities(Context& c, Element type, const void* scores, std::int64_t rows, std::int64_t vocab,
                         const LogitsForm* form, const RowStats* stats, const float* rounded_sums,
                         void* out) {
    if (c.failed() || rows == 0) return;
    const dim3 grid(static_cast<unsigned>((vocab + 2047) / 2048), static_cast<unsigned>(rows));
    const int width = static_cast<int>(vocab);
    const bool vectors = vocab % 8 == 0;
    if (type == Element::bf16) {
        launch(c, "the probabilities of the soft embedding", probabilities_kernel<bf16>, grid, 256, 0,
               static_cast<const bf16*>(scores), width, vectors, form, stats, rounded_sums,
               static_cast<bf16*>(out));
    } else {
        launch(c, "the probabilities of the soft embedding", probabilities_kernel<float>, grid, 256, 0,
               static_cast<const float*>(scores), width, vectors, form, stats, rounded_sums,
               static_cast<float*>(out));
    }
}

}  // namespace dgemma::backend::cuda
