// The end of a pass: statistics of every row of zt = softcap * tanh(score / softcap) / T, without zt ever
// being written, and the probabilities that the next pass's soft embedding reads.
//
// In bf16 the scores are stored as the contract rounds them (before the softcap), so zt can be had again
// exactly.
#include "backend/cuda/device.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int threads = 512;
constexpr int probability_threads = 256, rounds = 4;
constexpr int probabilities_of_block = probability_threads * rounds * 8;

// From a score to zt. Scores in bf16 are coarse: there zt may be off by a few 1e-7 of itself.
template <class T>
struct Scores {
    float softcap, temperature, by_softcap, by_temperature, turn;
    // Of zt / score in the square of the score, for scores that are small beside the softcap.
    float series[5];

    explicit __device__ Scores(const LogitsForm& form)
        : softcap(form.softcap),
          temperature(form.temperature),
          by_softcap(1.0f / form.softcap),
          by_temperature(1.0f / form.temperature),
          turn(2.0f * log2e / form.softcap) {
        constexpr float tangent[5] = {1.0f, -0.333332875f, 0.13328464f, -0.0531467447f, 0.017295752f};
        float scale = by_temperature;
#pragma unroll
        for (int i = 0; i < 5; ++i, scale *= by_softcap * by_softcap) series[i] = tangent[i] * scale;
    }

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
                const float s = v * v;
                v *=
                    fmaf(fmaf(fmaf(fmaf(series[4], s, series[3]), s, series[2]), s, series[1]), s, series[0]);
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

// exp(x - base) for eight numbers of a row that is stored in T, added up. What is stored in bf16 may be off
// by some 1e-6: there one multiply-add is an exponent.
template <class T>
struct Exponentials {
    float base = 0;  // in turns of log2 e where T is bf16
    float sum = 0, product = 0;

    __device__ void begin(float max) { base = sizeof(T) == 4 ? max : max * log2e; }
    __device__ float exponent(float x) const {
        return sizeof(T) == 4 ? (x - base) * log2e : fmaf(x, log2e, -base);
    }
    __device__ void add(float x) { sum += power_of_two(exponent(x)); }
    __device__ void add_with_product(float x) {
        const float e = exponent(x), weight = power_of_two(e);
        sum += weight;
        product = fmaf(weight, sizeof(T) == 4 ? x - base : e, product);
    }
    // Of exp(x - base) (x - base).
    [[nodiscard]] __device__ float plain_product() const {
        return sizeof(T) == 4 ? product : product * (1.0f / log2e);
    }
};

// Rounds eight numbers, in bf16 two at a time.
template <class T>
__device__ __forceinline__ void round8(float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        if (sizeof(T) == 4) continue;
        const std::uint32_t both = pack2(x[i], x[i + 1]);
        x[i] = lower_half(both), x[i + 1] = upper_half(both);
    }
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
    Exponentials<T> plain, coarse;
    const auto settle = [&] {
        t.sum += plain.sum, t.product += plain.plain_product(), t.rounded += coarse.sum;
        plain.sum = plain.product = coarse.sum = 0;
    };
    constexpr float nothing = -1e30f;  // beyond the row's end: its exponential is 0
    const int begin = static_cast<int>(threadIdx.x) * 8;
    float ahead[8];  // the next eight, on their way
    if (begin < vocab) load_scores(row, begin, vocab, vectors, ahead);
    for (int first = begin; first < vocab; first += threads * 8) {
        float z[8], highest = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; ++i) z[i] = ahead[i];
        if (first + threads * 8 < vocab) load_scores(row, first + threads * 8, vocab, vectors, ahead);
        turn.template zt8<Given>(z);
        if (!vectors) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (first + i >= vocab) z[i] = nothing;
            }
        }
#pragma unroll
        for (const float x : z) highest = fmaxf(highest, x);
        if (highest > t.max) {  // rare, but for the first
            settle();
            raise<T>(t, highest);
            t.max = highest;
            plain.begin(highest);
            coarse.begin(rounded<T>(highest));
#pragma unroll
            for (int i = 7; i >= 0; --i) {
                if (z[i] == highest) t.at = first + i;
            }
        }
#pragma unroll
        for (const float x : z) plain.add_with_product(x);
        round8<T>(z);
#pragma unroll
        for (const float x : z) coarse.add(x);
    }
    settle();
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
    const float sum = rounded_sums[blockIdx.y], by_sum = 1.0f / sum;
    Exponentials<T> coarse;
    coarse.begin(rounded<T>(stats[blockIdx.y].max));
    const int begin =
        static_cast<int>(blockIdx.x) * probabilities_of_block + static_cast<int>(threadIdx.x) * 8;
    float z[rounds][8];  // all are fetched before the first is looked at
#pragma unroll
    for (int n = 0; n < rounds; ++n) {
        const int first = begin + n * probability_threads * 8;
        if (first < vocab) load_scores(scores + row, first, vocab, vectors, z[n]);
    }
#pragma unroll
    for (int n = 0; n < rounds; ++n) {
        const int first = begin + n * probability_threads * 8;
        if (first >= vocab) return;
        if (own.softcap != 0.0f) turn.template zt8<false>(z[n]);
        round8<T>(z[n]);
#pragma unroll
        for (float& x : z[n]) {
            const float weight = power_of_two(coarse.exponent(x));
            x = sizeof(T) == 4 ? Scores<T>::divide(weight, sum, by_sum) : weight * by_sum;
        }
        if (vectors) {
            store8(out + row + first, z[n]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (first + i < vocab) out[row + first + i] = from_float<T>(z[n][i]);
            }
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
    const dim3 grid(static_cast<unsigned>((vocab + probabilities_of_block - 1) / probabilities_of_block),
                    static_cast<unsigned>(rows));
    const int width = static_cast<int>(vocab);
    const bool vectors = vocab % 8 == 0;
    if (type == Element::bf16) {
        launch(c, "the probabilities of the soft embedding", probabilities_kernel<bf16>, grid,
               probability_threads, 0, static_cast<const bf16*>(scores), width, vectors, form, stats,
               rounded_sums, static_cast<bf16*>(out));
    } else {
        launch(c, "the probabilities of the soft embedding", probabilities_kernel<float>, grid,
               probability_threads, 0, static_cast<const float*>(scores), width, vectors, form, stats,
               rounded_sums, static_cast<float*>(out));
    }
}

}  // namespace dgemma::backend::cuda
