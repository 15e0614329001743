// The source of one table of plain kernels. The including file says how wide a vector is and how large a
// tile:
//   DGEMMA_LANES (floats in a vector), DGEMMA_PANEL (rows of a tile), DGEMMA_VECTORS (vectors in a tile's
//   row), DGEMMA_TABLE (name of the table), DGEMMA_ISA (its name as a string).
#include <cmath>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "backend/cpu/plain_kernels.h"

namespace dgemma::backend::cpu {
namespace {

constexpr int kLanes = DGEMMA_LANES;
constexpr int kPanel = DGEMMA_PANEL;
constexpr int kVectors = DGEMMA_VECTORS;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t UintVec __attribute__((vector_size(kLanes * 4)));

inline Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
inline Vec splat(float x) { return Vec{} + x; }

// The first n < kLanes elements, `fill` behind them.
inline Vec load_part(const float* p, std::int64_t n, float fill) {
    Vec v = splat(fill);
    std::memcpy(&v, p, static_cast<std::size_t>(n) * 4);
    return v;
}
inline void store_part(float* p, Vec v, std::int64_t n) {
    std::memcpy(p, &v, static_cast<std::size_t>(n) * 4);
}

inline Vec rb(Vec x) {
    const UintVec bits = (UintVec)x;
    const UintVec up = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
    const UintVec nan = (UintVec)((bits & 0x7FFFFFFFu) > 0x7F800000u);
    return (Vec)((nan & (bits | 0x00400000u) & 0xFFFF0000u) | (~nan & up));
}

// The product as such: a compiler that may fuse must not see what becomes of it.
inline Vec alone(Vec x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

// e^x by splitting off a power of two and a Taylor polynomial of the rest (|r| <= ln 2 / 2, error below
// 1e-8).
inline Vec exp(Vec x) {
    const Vec low = splat(-87.0f);
    const Vec high = splat(88.0f);
    const IntVec zero = x < low;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Vec n = (x * 1.44269504088896341f + magic) - magic;
    const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
    return (Vec)((IntVec)(p * (Vec)power) & ~zero);
}

// Below 0.3 the odd Taylor series (error below 1e-9 of x), above it (1 - t) / (1 + t) with t = e^(-2|x|).
inline Vec tanh(Vec x) {
    const Vec a = x < 0.0f ? -x : x;
    const Vec t = exp(a * -2.0f);
    const Vec large = (1.0f - t) / (1.0f + t);
    const Vec z = x * x;
    Vec p = splat(-1382.0f / 155925);
    p = p * z + 62.0f / 2835;
    p = p * z + -17.0f / 315;
    p = p * z + 2.0f / 15;
    p = p * z + -1.0f / 3;
    const Vec small = x + x * z * p;
    return a < 0.3f ? small : (x < 0.0f ? -large : large);
}

inline Vec gelu(Vec x) { return 0.5f * x * (1.0f + tanh(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

// The lanes' sum as a fixed tree.
inline float sum_of(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

// f(vector) over all of x in place.
template <class F>
inline void map(float* x, std::int64_t n, F f) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(x + i, f(load(x + i)));
    if (i < n) store_part(x + i, f(load_part(x + i, n - i, 0.0f)), n - i);
}

double burn(std::int64_t rounds) {
    constexpr int chains = 12;
    volatile float one = 1.0f;
    volatile float small = 1e-9f;
    const Vec x = splat(one);
    const Vec y = splat(small);
    Vec acc[chains];
    // Chains that began alike would be merged into one.
    for (int c = 0; c < chains; ++c) acc[c] = y * static_cast<float>(c);
    for (std::int64_t i = 0; i < rounds; ++i) {
        for (auto& v : acc) v = v * x + y;
    }
    float sum = 0;
    for (auto& v : acc) sum += v[0];
    __asm__ volatile("" ::"r"(&sum) : "memory");
    return static_cast<double>(chains) * kLanes * static_cast<double>(rounds);
}

void tile(std::int64_t k, const float* a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
          bool add) {
    Vec acc[kPanel][kVectors];
    for (int r = 0; r < kPanel; ++r) {
        for (int v = 0; v < kVectors; ++v) acc[r][v] = add ? load(c + r * ldc + v * kLanes) : Vec{};
    }
    for (std::int64_t i = 0; i < k; ++i) {
        Vec w[kVectors];
        for (int v = 0; v < kVectors; ++v) w[v] = load(b + i * ldb + v * kLanes);
        for (int r = 0; r < kPanel; ++r) {
            for (int v = 0; v < kVectors; ++v) acc[r][v] += a[i * kPanel + r] * w[v];
        }
    }
    for (int r = 0; r < kPanel; ++r) {
        for (int v = 0; v < kVectors; ++v) store(c + r * ldc + v * kLanes, acc[r][v]);
    }
}

// Four rows and four columns at a time, turned around in registers; what is left over one by one.
void pack(const float* const* x, std::int64_t k, int count, float* panel) {
    typedef float Four __attribute__((vector_size(16)));
    const auto four = [&](int r, std::int64_t i) {
        Four v{};
        if (r < count) std::memcpy(&v, x[r] + i, sizeof(v));
        return v;
    };
    const std::int64_t whole = k / 4 * 4;
    for (std::int64_t i = 0; i < whole; i += 4) {
        for (int r = 0; r + 4 <= kPanel; r += 4) {
            const Four r0 = four(r, i), r1 = four(r + 1, i), r2 = four(r + 2, i), r3 = four(r + 3, i);
            const Four a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
            const Four b = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
            const Four c = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
            const Four d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
            const Four column[4] = {
                __builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
            for (int j = 0; j < 4; ++j) std::memcpy(panel + (i + j) * kPanel + r, &column[j], sizeof(Four));
        }
    }
    for (int r = 0; r < kPanel; ++r) {
        for (std::int64_t i = r < kPanel / 4 * 4 ? whole : 0; i < k; ++i)
            panel[i * kPanel + r] = r < count ? x[r][i] : 0.0f;
    }
}

void gelu_times(float* gate, const float* up, std::int64_t n, bool bf16) {
    const auto one = [bf16](Vec g, Vec u) { return bf16 ? rb(rb(gelu(g)) * u) : gelu(g) * u; };
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(gate + i, one(load(gate + i), load(up + i)));
    if (i < n) store_part(gate + i, one(load_part(gate + i, n - i, 0), load_part(up + i, n - i, 0)), n - i);
}

typedef double Wide __attribute__((vector_size(64)));

// Eight numbers as double.
inline Wide widened(const float* p) {
#if defined(__AVX512F__)
    return (Wide)_mm512_cvtps_pd(_mm256_loadu_ps(p));  // GCC makes four conversions of it by itself
#else
    typedef float Eight __attribute__((vector_size(32)));
    Eight v;
    std::memcpy(&v, p, sizeof(v));
    return __builtin_convertvector(v, Wide);
#endif
}

// Each row is a chain of additions that wait for each other: several rows at a time fill the waiting.
template <int Rows>
inline void sum_squares_of(const float* x, std::int64_t stride, std::int64_t n, double* sums) {
    Wide sum[Rows]{};
    const auto add = [&](int r, const float* p) {
        const Wide w = widened(p);
        sum[r] += w * w;
    };
    const std::int64_t whole = n / 8 * 8;
    for (std::int64_t i = 0; i < whole; i += 8) {
        for (int r = 0; r < Rows; ++r) add(r, x + r * stride + i);
    }
    for (int r = 0; r < Rows; ++r) {
        if (whole < n) {
            float left[8] = {};
            std::memcpy(left, x + r * stride + whole, static_cast<std::size_t>(n - whole) * 4);
            add(r, left);
        }
        const Wide& s = sum[r];
        sums[r] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
}

void sum_squares(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t n, double* sums) {
    std::int64_t r = 0;
    for (; r + 4 <= rows; r += 4) sum_squares_of<4>(x + r * stride, stride, n, sums + r);
    for (; r + 2 <= rows; r += 2) sum_squares_of<2>(x + r * stride, stride, n, sums + r);
    if (r < rows) sum_squares_of<1>(x + r * stride, stride, n, sums + r);
}

void scale(const float* x, const float* w, std::int64_t n, float factor, bool bf16, float* out) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        Vec v = (left >= kLanes ? load(x + i) : load_part(x + i, left, 0.0f)) * factor;
        if (w != nullptr) v *= left >= kLanes ? load(w + i) : load_part(w + i, left, 0.0f);
        if (bf16) v = rb(v);
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
}

void scale_add(const float* x, const float* w, std::int64_t n, float factor, bool bf16, const float* b,
               float* out) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        Vec v = (left >= kLanes ? load(x + i) : load_part(x + i, left, 0.0f)) * factor;
        if (w != nullptr) v *= left >= kLanes ? load(w + i) : load_part(w + i, left, 0.0f);
        v = bf16 ? rb(v) : alone(v);
        v = (left >= kLanes ? load(b + i) : load_part(b + i, left, 0.0f)) + v;
        if (bf16) v = rb(v);
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
}

void add(const float* a, const float* b, std::int64_t n, bool bf16, float* out) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        Vec v = left >= kLanes ? load(a + i) : load_part(a + i, left, 0.0f);
        if (b != nullptr) v += left >= kLanes ? load(b + i) : load_part(b + i, left, 0.0f);
        if (bf16) v = rb(v);
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
}

void add_scaled(const float* x, std::int64_t n, float factor, bool bf16, float* out) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        Vec v = (left >= kLanes ? load(x + i) : load_part(x + i, left, 0.0f)) * factor;
        if (bf16) v = rb(v);
        v = (left >= kLanes ? load(out + i) : load_part(out + i, left, 0.0f)) + v;
        if (bf16) v = rb(v);
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
}

void rotate(float* x, std::int64_t half, const float* c, const float* s, bool bf16) {
    const auto product = [bf16](Vec a, Vec b) { return bf16 ? rb(a * b) : alone(a * b); };
    const auto sum = [bf16](Vec a, Vec b) { return bf16 ? rb(a + b) : a + b; };
    for (std::int64_t d = 0; d < half; d += kLanes) {
        const std::int64_t n = half - d;
        const auto get = [n](const float* p) { return n >= kLanes ? load(p) : load_part(p, n, 0.0f); };
        const Vec a = get(x + d), b = get(x + half + d), cos = get(c + d), sin = get(s + d);
        const Vec first = sum(product(a, cos), product(-b, sin));
        const Vec second = sum(product(b, cos), product(a, sin));
        n >= kLanes ? store(x + d, first) : store_part(x + d, first, n);
        n >= kLanes ? store(x + half + d, second) : store_part(x + half + d, second, n);
    }
}

void round(float* x, std::int64_t n) { map(x, n, rb); }

float max(const float* x, std::int64_t n) {
    Vec top = splat(-INFINITY);
    std::int64_t i = 0;
    for (; i < n; i += kLanes) {
        const Vec v = i + kLanes <= n ? load(x + i) : load_part(x + i, n - i, -INFINITY);
        top = v > top ? v : top;
    }
    float best = top[0];
    for (int l = 1; l < kLanes; ++l) best = top[l] > best ? top[l] : best;
    return best;
}

float exp_sum(float* x, std::int64_t n, float shift) {
    Vec sum{};
    for (std::int64_t i = 0; i < n; i += kLanes) {
        if (i + kLanes <= n) {
            const Vec e = exp(load(x + i) - shift);
            sum += e;
            store(x + i, e);
        } else {
            const Vec e = exp(load_part(x + i, n - i, -INFINITY) - shift);
            sum += e;
            store_part(x + i, e, n - i);
        }
    }
    return sum_of(sum);
}

float sum_exp(const float* x, std::int64_t n, float shift) {
    Vec sum{};
    for (std::int64_t i = 0; i < n; i += kLanes) {
        sum += exp((i + kLanes <= n ? load(x + i) : load_part(x + i, n - i, -INFINITY)) - shift);
    }
    return sum_of(sum);
}

SliceStats softcap(const float* x, std::int64_t n, float cap, float temperature, float* out) {
    Vec top = splat(-INFINITY);
    UintVec broken{};
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        // What fills up the last vector repeats the slice's first value.
        Vec v = left >= kLanes ? load(x + i) : load_part(x + i, left, x[i]);
        v = cap * tanh(v / cap) / temperature;
        broken |= (UintVec)(((UintVec)v & 0x7F800000u) == 0x7F800000u);
        top = v > top ? v : top;
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
    SliceStats stats;
    std::uint32_t any = 0;
    stats.max = top[0];
    for (int l = 0; l < kLanes; ++l) {
        any |= broken[l];
        stats.max = top[l] > stats.max ? top[l] : stats.max;
    }
    stats.finite = any == 0;
    Vec sum{}, weighted{};
    for (std::int64_t i = 0; i < n; i += kLanes) {
        // The fill is finite: its probability is zero, and zero times it is zero.
        const Vec v = i + kLanes <= n ? load(out + i) : load_part(out + i, n - i, stats.max - 1000.0f);
        const Vec e = exp(v - stats.max);
        sum += e;
        weighted += e * (v - stats.max);
    }
    stats.sum = sum_of(sum);
    stats.weighted = sum_of(weighted);
    return stats;
}

void softmax(const float* x, std::int64_t n, float shift, float divisor, bool bf16, float* out) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        Vec v = exp((left >= kLanes ? load(x + i) : load_part(x + i, left, 0.0f)) - shift) / divisor;
        if (bf16) v = rb(v);
        left >= kLanes ? store(out + i, v) : store_part(out + i, v, left);
    }
}

void to_bf16(const float* x, std::int64_t n, std::uint16_t* out) {
    typedef std::uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        const Vec v = rb(left >= kLanes ? load(x + i) : load_part(x + i, left, 0.0f));
        const HalfVec half = __builtin_convertvector((UintVec)v >> 16, HalfVec);
        std::memcpy(out + i, &half, static_cast<std::size_t>(left >= kLanes ? kLanes : left) * 2);
    }
}

void divide(float* x, std::int64_t n, float divisor, bool bf16) {
    if (bf16) {
        map(x, n, [=](Vec v) { return rb(v / divisor); });
    } else {
        map(x, n, [=](Vec v) { return v / divisor; });
    }
}

}  // namespace

const PlainKernels DGEMMA_TABLE = {
    DGEMMA_ISA,  kPanel,  kVectors* kLanes, burn,    tile,       pack,   gelu_times, softcap,
    sum_squares, scale,   scale_add,        add,     add_scaled, rotate, round,      max,
    exp_sum,     sum_exp, softmax,          to_bf16, divide};

}  // namespace dgemma::backend::cpu
