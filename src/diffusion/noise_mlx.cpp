#include "diffusion/noise_mlx.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace dgemma::diffusion {

std::array<std::uint32_t, 2> threefry2x32(ThreefryKey key, std::array<std::uint32_t, 2> counter) {
    constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const std::array<std::uint32_t, 3> schedule = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    auto [x0, x1] = counter;
    x0 += schedule[0];
    x1 += schedule[1];
    for (std::uint32_t group = 0; group < 5; ++group) {
        for (const int rotation : kRotations[group % 2]) {
            x0 += x1;
            x1 = std::rotl(x1, rotation) ^ x0;
        }
        x0 += schedule[(group + 1) % 3];
        x1 += schedule[(group + 2) % 3] + group + 1;
    }
    return {x0, x1};
}

ThreefryKey MlxRandom::next() {
    const ThreefryKey from = state_;
    state_ = {word(from, 4, 0), word(from, 4, 1)};
    return {word(from, 4, 2), word(from, 4, 3)};
}

std::uint32_t MlxRandom::word(ThreefryKey key, std::uint64_t count, std::uint64_t i) {
    // Counters (y, y + second) give words y and y + second; an odd count has one word of its own in the
    // middle.
    const std::uint64_t half = count / 2, second = half + count % 2;
    const auto hash = [&](std::uint64_t low, std::uint64_t high) {
        return threefry2x32(key, {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high)});
    };
    if (i < half) return hash(i, i + second)[0];
    if (i < second) return hash(i, 0)[0];
    return hash(i - second, i)[1];
}

float MlxRandom::uniform(std::uint32_t word) {
    return std::min(static_cast<float>(word) / 4294967296.0f, 1 - 0x1p-24f);
}

void MlxRandom::randint(ThreefryKey key, int width, std::span<std::int32_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const float scaled = static_cast<float>(width) * uniform(word(key, ids.size(), i));
        ids[i] = std::min(static_cast<std::int32_t>(std::floor(scaled)), width - 1);
    }
}

std::int32_t MlxRandom::categorical_row(ThreefryKey key, std::uint64_t rows, std::uint64_t i,
                                        std::span<const float> logits) {
    const std::uint64_t width = logits.size();
    float most = -std::numeric_limits<float>::infinity();
    std::size_t best = 0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
        const float u = uniform(word(key, rows * width, i * width + id));
        const float sum = logits[id] - std::log(-std::log(u));
        if (sum > most) most = sum, best = id;
    }
    return static_cast<std::int32_t>(best);
}

Status MlxNoise::initial_canvas(BlockKey, std::span<std::int32_t> ids) {
    MlxRandom::randint(random_.next(), vocabulary_, ids);
    return {};
}

Status MlxNoise::draw(BlockKey, int, LogitRows& rows, float temperature, std::span<const std::uint8_t> wanted,
                      std::span<std::int32_t> ids) {
    const ThreefryKey key = random_.next();
    std::vector<float> scaled;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!wanted[i]) continue;
        const std::span<const float> row = rows.row(static_cast<int>(i));
        scaled.assign(row.begin(), row.end());
        for (float& x : scaled) x /= temperature;
        ids[i] = MlxRandom::categorical_row(key, ids.size(), i, scaled);
    }
    return {};
}

Status MlxNoise::renoise(BlockKey key, int, std::span<std::int32_t> ids) { return initial_canvas(key, ids); }

}  // namespace dgemma::diffusion
