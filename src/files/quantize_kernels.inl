// The source of one table of kernels. The including file says how wide a vector is:
//   DGEMMA_LANES (floats in a vector), DGEMMA_TABLE (name of the table), DGEMMA_ISA (its name as a string).
// Compiled without contraction of products and sums, so that every table gives the same bytes.
#include <cstring>

#include "files/quantize_kernels.h"

namespace dgemma::files {
namespace {

constexpr int kLanes = DGEMMA_LANES;
constexpr int kTile = 32;   // rows of a tile
constexpr int kGroup = 32;  // columns of a group, and of the block that is turned at once
constexpr int kParts = kTile / kLanes;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint8_t ByteVec __attribute__((vector_size(kLanes)));
typedef std::uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));

inline Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
inline Vec load_some(const float* p, std::size_t count) {
    Vec v = {};
    std::memcpy(&v, p, count * 4);
    return v;
}
// Calls f(first, count) for whole vectors and for what is left over. Inlined, so that the copies of whole
// vectors have a size known to the compiler.
template <class F>
inline void in_vectors(std::int64_t n, F f) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) f(i, std::size_t{kLanes});
    if (i < n) f(i, static_cast<std::size_t>(n - i));
}
#define DGEMMA_INLINED __attribute__((always_inline))
inline Vec splat(float x) { return Vec{} + x; }
inline Vec least(Vec a, Vec b) { return a < b ? a : b; }
inline Vec most(Vec a, Vec b) { return a > b ? a : b; }
inline Vec choose(IntVec condition, Vec yes, Vec no) { return condition ? yes : no; }
// To the nearest whole number, ties to even; for magnitudes below 2^22.
inline Vec round(Vec x) {
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23
    return (x + magic) - magic;
}
inline UintVec whole(Vec x) { return (UintVec) __builtin_convertvector(x, IntVec); }
inline Vec real(UintVec x) { return __builtin_convertvector((IntVec)x, Vec); }

// --- bf16, of finite numbers

inline UintVec bf16_bits(Vec x) {
    const UintVec bits = (UintVec)x;
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}
inline Vec from_bf16(UintVec bits) { return (Vec)(bits << 16); }
inline Vec to_bf16(Vec x) { return from_bf16(bf16_bits(x)); }
// The next bf16 number that is not above x.
inline Vec bf16_below(Vec x) {
    const UintVec bits = (UintVec)x;
    const UintVec cut = bits & 0xFFFF0000u;
    const UintVec further = cut + 0x10000u;  // away from zero
    return (Vec)(((IntVec)bits < 0) & (IntVec)(cut != bits) ? further : cut);
}
// The next bf16 number that is not below x, of x >= 0.
inline Vec bf16_above(Vec x) { return (Vec)(((UintVec)x + 0xFFFFu) & 0xFFFF0000u); }

inline void store_halves(std::byte* to, UintVec low_halves) {
    const HalfVec halves = __builtin_convertvector(low_halves, HalfVec);
    std::memcpy(to, &halves, sizeof(halves));
}

// --- the block of 32 columns of a tile, turned: [column][row]

struct Block {
    alignas(64) float x[kGroup][kTile];

    void turn(const TileRows& rows, std::int64_t first, int cols) {
        for (int r = 0; r < kTile; ++r) {
            const float* from = rows.data + r * rows.stride + first;
            for (int c = 0; c < cols; ++c) x[c][r] = from[c];
        }
    }
    [[nodiscard]] Vec column(int c, int part) const { return load(&x[c][part * kLanes]); }
};

// Where the words of a tile's columns [first, ...) stand: `per_word` columns to a word of 4 bytes.
inline std::byte* word_at(std::byte* codes, std::int64_t first, int per_word, int part) {
    return codes + (first / per_word * kTile + part * kLanes) * 4;
}
inline void store_words(std::byte* to, UintVec words) { std::memcpy(to, &words, sizeof(words)); }

void bf16_tile(const TileRows& rows, std::byte* codes) {
    Block block;
    for (std::int64_t first = 0; first < rows.cols; first += kGroup) {
        const int cols = static_cast<int>(rows.cols - first < kGroup ? rows.cols - first : kGroup);
        block.turn(rows, first, cols);
        for (int c = 0; c < cols; c += 2) {
            for (int part = 0; part < kParts; ++part) {
                const UintVec even = bf16_bits(block.column(c, part));
                const UintVec odd = bf16_bits(block.column(c + 1, part));
                store_words(word_at(codes, first + c, 2, part), even | odd << 16);
            }
        }
    }
}

// --- affine groups

// value = scale * q + bias
struct Affine {
    Vec scale, bias;  // both bf16 numbers
    Vec inverse;      // 1 / scale; 0 where the scale is 0
};

inline Affine with_scale(Vec scale, Vec bias) {
    const IntVec some = scale > 0.0f;
    return {scale, bias, choose(some, 1.0f / choose(some, scale, splat(1)), splat(0))};
}

// Scale and bias that reach every element: the bias is the bf16 number below the least, the scale the one
// above what the rest needs. No element is then off by more than half a scale.
inline Affine covering(Vec low, Vec high, float levels) {
    const Vec bias = bf16_below(low);
    const Vec range = high - bias;
    // A scale below the normal numbers would have no inverse.
    const Vec scale = most(bf16_above(range / levels), splat(0x1p-126f));
    return with_scale(choose(range > 0.0f, scale, splat(0)), bias);
}

inline Vec code_of(Vec x, const Affine& a, float levels) {
    return round(least(most((x - a.bias) * a.inverse, splat(0)), splat(levels)));
}

inline void bounds_of(const Block& block, int part, Vec& low, Vec& high) {
    low = high = block.column(0, part);
    for (int c = 1; c < kGroup; ++c) {
        low = least(low, block.column(c, part));
        high = most(high, block.column(c, part));
    }
}

// The sums that a least-squares line y = slope * p + offset through a group's points needs, p being the codes
// counted from the middle one.
struct Line {
    Vec p = {}, pp = {}, py = {};

    void add(Vec code, Vec y) {
        const Vec centred = code - 7.5f;
        p += centred;
        pp += centred * centred;
        py += centred * y;
    }
    // mean_y: of the group. gain: by how much the line lowers the sum of squares below the mean's.
    void fit(Vec mean_y, Vec& slope, Vec& at_zero, Vec& gain) const {
        const Vec mean_p = p * (1.0f / kGroup);
        const Vec along = py - p * mean_y;
        const Vec spread = pp - p * mean_p;
        const IntVec some = spread > 0.5f;  // two different codes give at least 31 / 32
        const Vec inverse = 1.0f / choose(some, spread, splat(1));
        slope = choose(some, along * inverse, splat(0));
        gain = slope * along;
        at_zero = mean_y - slope * (mean_p + 7.5f);
    }
};

// Scale and bias of 16 levels with a small square error. The ends of the range are pulled in by each of
// sixteen pairs of factors; a line fitted to the codes they give says what the pair is worth, and the best
// one's line is rounded to bf16 and fitted once more. The result is never worse than covering.
inline Affine best_of_16_levels(const Block& block, int part) {
    constexpr float kLevels = 15;
    constexpr int kFactors = 4;
    constexpr float factors[kFactors] = {1, 0.94f, 0.88f, 0.82f};

    Vec low, high;
    bounds_of(block, part, low, high);
    Affine best = covering(low, high, kLevels);

    // The group in units of half its range, around its middle: y in [-1, 1].
    const Vec middle = (low + high) * 0.5f;
    const Vec radius = (high - low) * 0.5f;
    const IntVec some = radius > 0x1p-120f;
    const Vec unit = choose(some, 1.0f / choose(some, radius, splat(1)), splat(0));
    Vec y[kGroup];
    Vec sum = {};
    for (int c = 0; c < kGroup; ++c) {
        y[c] = (block.column(c, part) - middle) * unit;
        sum += y[c];
    }
    const Vec mean = sum * (1.0f / kGroup);

    Vec slope = {}, at_zero = {}, best_gain = splat(-1);
    for (const float below : factors) {
        for (const float above : factors) {
            const float inverse = kLevels / (below + above);
            const float shift = below * inverse;
            Line line;
            for (int c = 0; c < kGroup; ++c)
                line.add(round(least(most(y[c] * inverse + shift, splat(0)), splat(kLevels))), y[c]);
            Vec candidate, offset, gain;
            line.fit(mean, candidate, offset, gain);
            const IntVec better = gain > best_gain;
            best_gain = choose(better, gain, best_gain);
            slope = choose(better, candidate, slope);
            at_zero = choose(better, offset, at_zero);
        }
    }

    // In y: the square error of a scale and a bias as they will be stored.
    const auto error_of = [&](const Affine& a, Line& line) {
        const Vec step = a.scale * unit, zero = (a.bias - middle) * unit;
        const IntVec steps = step > 0.0f;
        const Vec inverse = choose(steps, 1.0f / choose(steps, step, splat(1)), splat(0));
        Vec error = {};
        for (int c = 0; c < kGroup; ++c) {
            const Vec q = round(least(most((y[c] - zero) * inverse, splat(0)), splat(kLevels)));
            const Vec off = y[c] - (q * step + zero);
            error += off * off;
            line.add(q, y[c]);
        }
        return error;
    };
    Line unused;
    Vec least_error = error_of(best, unused);
    for (int round_number = 0; round_number < 2; ++round_number) {
        const Affine candidate = with_scale(to_bf16(slope * radius), to_bf16(middle + at_zero * radius));
        Line line;
        const Vec error = error_of(candidate, line);
        const IntVec better = some & (error < least_error) & (candidate.scale >= 0x1p-126f);
        least_error = choose(better, error, least_error);
        best.scale = choose(better, candidate.scale, best.scale);
        best.bias = choose(better, candidate.bias, best.bias);
        best.inverse = choose(better, candidate.inverse, best.inverse);
        Vec gain;
        line.fit(mean, slope, at_zero, gain);
    }
    return best;
}

template <int kBits>
void affine_tile(const TileRows& rows, std::byte* codes, std::byte* scales, std::byte* biases) {
    constexpr int kPerWord = 32 / kBits;
    Block block;
    for (std::int64_t first = 0; first < rows.cols; first += kGroup) {
        block.turn(rows, first, kGroup);
        for (int part = 0; part < kParts; ++part) {
            Affine affine;
            if constexpr (kBits == 8) {
                Vec low, high;
                bounds_of(block, part, low, high);
                affine = covering(low, high, 255);
            } else {
                affine = best_of_16_levels(block, part);
            }
            for (int c = 0; c < kGroup; c += kPerWord) {
                UintVec words = {};
                for (int j = 0; j < kPerWord; ++j) {
                    const UintVec q = whole(code_of(block.column(c + j, part), affine, (1 << kBits) - 1.0f));
                    // Eight bits: byte j. Four: byte j % 4, the first four columns in the low nibbles.
                    words |= q << (8 * (j % 4) + 4 * (j / 4));
                }
                store_words(word_at(codes, first + c, kPerWord, part), words);
            }
            const std::int64_t at = (first / kGroup * kTile + part * kLanes) * 2;
            store_halves(scales + at, (UintVec)affine.scale >> 16);
            store_halves(biases + at, (UintVec)affine.bias >> 16);
        }
    }
}

// --- floats of eight and four bits (base/small_floats.h)

// Codes of magnitudes that are not negative and not NaN.
inline UintVec e4m3_bits(Vec x) {
    x = least(x, splat(448));
    const UintVec bits = (UintVec)x;
    const UintVec normal = ((bits + 0x7FFFFu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
    const UintVec small = whole(round(least(x, splat(0x1p-6f)) * 512.0f));
    return x < 0x1p-6f ? small : normal;
}
inline Vec from_e4m3(UintVec code) {
    return (IntVec)code < 8 ? real(code) * 0x1p-9f : (Vec)((code << 20) + (120u << 23));
}

// The nearest E2M1 magnitude of one that is not negative, and its code.
inline UintVec e2m1_bits(Vec x) {
    x = least(x, splat(6));
    const UintVec fine = whole(round(least(x, splat(2)) * 2.0f));
    const UintVec middle = whole(round(x)) + 2u;
    const UintVec coarse = whole(round(x * 0.5f)) + 4u;
    return x < 2.0f ? fine : x < 4.0f ? middle : coarse;
}
inline Vec e2m1_round(Vec x) {
    x = least(x, splat(6));
    const Vec coarser = x < 4.0f ? round(x) : round(x * 0.5f) * 2.0f;
    return x < 2.0f ? round(x * 2.0f) * 0.5f : coarser;
}

inline Vec absolute(Vec x) { return (Vec)((UintVec)x & 0x7FFFFFFFu); }

void fp8_row(const float* x, std::int64_t n, float scale, std::byte* codes) {
    in_vectors(n, [&](std::int64_t i, std::size_t count) DGEMMA_INLINED {
        const Vec scaled = load_some(x + i, count) / scale;
        const UintVec code = e4m3_bits(absolute(scaled)) | (((UintVec)scaled >> 24) & 0x80u);
        const ByteVec bytes = __builtin_convertvector(code, ByteVec);
        std::memcpy(codes + i, &bytes, count);
    });
}

void nvfp4_tile(const TileRows& rows, std::int64_t count, float global, std::byte* codes, std::byte* scales) {
    constexpr int kWidth = 16;
    // The largest element goes to 6, or to 4 with a scale half as large again, or somewhere between: steps of
    // the scale's code from the one that puts it at 6.
    constexpr int kFewest = -2, kMost = 5;
    Block block;
    for (std::int64_t first = 0; first < rows.cols; first += kWidth) {
        block.turn(rows, first, kWidth);
        for (int part = 0; part < kParts && part * kLanes < count; ++part) {
            Vec top = {};
            for (int c = 0; c < kWidth; ++c) top = most(top, absolute(block.column(c, part)));
            const UintVec base = e4m3_bits(top / 6.0f / global);
            const Vec unit = choose(top > 0.0f, 1.0f / choose(top > 0.0f, top, splat(1)), splat(0));
            UintVec best = base;
            Vec least_error = splat(1e30f);
            for (int step = kFewest; step <= kMost; ++step) {
                IntVec moved = (IntVec)base + step;
                moved = moved < 1 ? 1 - IntVec{} : moved;
                moved = moved > 0x7E ? 0x7E - IntVec{} : moved;
                const Vec scale = from_e4m3((UintVec)moved) * global;
                const Vec inverse = 1.0f / scale;
                Vec error = {};
                for (int c = 0; c < kWidth; ++c) {
                    const Vec x = absolute(block.column(c, part));
                    const Vec off = (x - e2m1_round(x * inverse) * scale) * unit;
                    error += off * off;
                }
                const IntVec better = error < least_error;
                least_error = choose(better, error, least_error);
                best = better ? (UintVec)moved : best;
            }
            best = top > 0.0f ? best : UintVec{};
            const Vec scale = from_e4m3(best) * global;
            const Vec inverse = choose(scale > 0.0f, 1.0f / choose(scale > 0.0f, scale, splat(1)), splat(0));
            UintVec words[2] = {};
            for (int c = 0; c < kWidth; ++c) {
                const Vec x = block.column(c, part);
                const UintVec code = e2m1_bits(absolute(x) * inverse) | (((UintVec)x >> 28) & 8u);
                words[c / 8] |= code << (4 * (c % 8));
            }
            std::uint32_t lanes[2][kLanes], scale_codes[kLanes];
            std::memcpy(lanes, words, sizeof(lanes));
            std::memcpy(scale_codes, &best, sizeof(scale_codes));
            for (int lane = 0; lane < kLanes && part * kLanes + lane < count; ++lane) {
                const std::int64_t row = part * kLanes + lane;
                std::byte* to = codes + row * (rows.cols / 2) + first / 2;
                std::memcpy(to, &lanes[0][lane], 4);
                std::memcpy(to + 4, &lanes[1][lane], 4);
                scales[row * (rows.cols / kWidth) + first / kWidth] =
                    static_cast<std::byte>(scale_codes[lane]);
            }
        }
    }
}

// --- plain rows

void bf16_row(const float* x, std::int64_t n, std::byte* codes) {
    in_vectors(n, [&](std::int64_t i, std::size_t count) DGEMMA_INLINED {
        const HalfVec halves = __builtin_convertvector(bf16_bits(load_some(x + i, count)), HalfVec);
        std::memcpy(codes + 2 * i, &halves, count * 2);
    });
}

void widen(const std::byte* bf16, std::int64_t n, float* out) {
    in_vectors(n, [&](std::int64_t i, std::size_t count) DGEMMA_INLINED {
        HalfVec halves = {};
        std::memcpy(&halves, bf16 + 2 * i, count * 2);
        const Vec values = from_bf16(__builtin_convertvector(halves, UintVec));
        std::memcpy(out + i, &values, count * 4);
    });
}

std::uint32_t magnitude(const float* x, std::int64_t n) {
    UintVec largest = {};
    in_vectors(n, [&](std::int64_t i, std::size_t count) DGEMMA_INLINED {
        const UintVec bits = (UintVec)absolute(load_some(x + i, count));
        largest = (IntVec)bits > (IntVec)largest ? bits : largest;
    });
    std::uint32_t lanes[kLanes], out = 0;
    std::memcpy(lanes, &largest, sizeof(lanes));
    for (const std::uint32_t lane : lanes) out = lane > out ? lane : out;
    return out;
}

void noise(std::uint32_t key, std::uint32_t other_key, std::int64_t n, float deviation, float* out) {
    // Of the sum of four bytes: mean 510, variance 4 * (256^2 - 1) / 12.
    const float scale = deviation / 147.8005413f;
    UintVec lane;
    for (int l = 0; l < kLanes; ++l) lane[l] = static_cast<std::uint32_t>(l);
    in_vectors(n, [&](std::int64_t i, std::size_t count) DGEMMA_INLINED {
        // Fold and multiply, with a key at the start and one on the way, which enough mixing follows: rows
        // with neighbouring keys are independent too.
        UintVec h = (lane + static_cast<std::uint32_t>(i)) * 0x9E3779B1u + key;
        h = (h ^ (h >> 16)) * 0x7FEB352Du;
        h = (h ^ (h >> 15)) + other_key;
        h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
        h = (h ^ (h >> 13)) * 0xC2B2AE35u;
        h ^= h >> 16;
        const UintVec pairs = (h & 0x00FF00FFu) + ((h >> 8) & 0x00FF00FFu);
        const UintVec sum = (pairs & 0xFFFFu) + (pairs >> 16);
        const Vec values = (real(sum) - 510.0f) * scale;
        std::memcpy(out + i, &values, count * 4);
    });
}

}  // namespace

const QuantizeKernels DGEMMA_TABLE = {
    .name = DGEMMA_ISA,
    .magnitude = magnitude,
    .bf16_tile = bf16_tile,
    .affine8_tile = affine_tile<8>,
    .affine4_tile = affine_tile<4>,
    .bf16_row = bf16_row,
    .fp8_row = fp8_row,
    .nvfp4_tile = nvfp4_tile,
    .widen = widen,
    .noise = noise,
};

}  // namespace dgemma::files
