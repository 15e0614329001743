#include "diffusion/noise_counter.h"

#include <cmath>
#include <cstddef>

#include "base/counter_rng.h"

namespace dgemma::diffusion {
namespace {

// floor(bits * width / 2^64): every id has the same share of the 64-bit numbers, up to one of them.
std::int32_t scaled(std::uint64_t bits, std::uint32_t width) {
    const std::uint64_t high = (bits >> 32) * width, low = (bits & 0xFFFFFFFFu) * width;
    return static_cast<std::int32_t>((high + (low >> 32)) >> 32);
}

// The id that a share `u` in [0, 1) of the distribution falls on. Sums run in f64 and in this order: the
// argmax, then the other ids ascending.
std::int32_t inverse_cdf(const RowStats& stats, LogitRows& rows, int position, double temperature, double u) {
    const auto weight = [&](float logit) {
        return std::exp((static_cast<double>(logit) - stats.max) / temperature);
    };
    // Weights are relative to the argmax, which has 1. At temperature 1 the head has summed them already.
    double total = 0;
    if (temperature == 1) {
        total = std::exp(static_cast<double>(stats.log_sum_exp) - stats.max);
    } else {
        for (const float logit : rows.row(position)) total += weight(logit);
    }
    double left = u * total - 1;
    if (left < 0) return stats.argmax;
    const std::span<const float> row = rows.row(position);
    std::int32_t last = stats.argmax;  // met when rounding leaves a little of u beyond the end
    for (std::size_t id = 0; id < row.size(); ++id) {
        if (static_cast<std::int32_t>(id) == stats.argmax) continue;
        const double share = weight(row[id]);
        if (!(share > 0)) continue;
        last = static_cast<std::int32_t>(id);
        left -= share;
        if (left < 0) break;
    }
    return last;
}

}  // namespace

std::uint64_t CounterNoise::bits(BlockKey key, int step, Purpose purpose, std::size_t position) const {
    const std::uint32_t attempt_and_purpose =
        static_cast<std::uint32_t>(key.attempt) << 2 | static_cast<std::uint32_t>(purpose);
    const auto words =
        philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(step),
                    static_cast<std::uint32_t>(key.block), attempt_and_purpose},
                   {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
    return std::uint64_t{words[0]} << 32 | words[1];
}

void CounterNoise::fill(BlockKey key, int step, Purpose purpose, std::span<std::int32_t> ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = scaled(bits(key, step, purpose, i), static_cast<std::uint32_t>(vocabulary_));
}

Status CounterNoise::initial_canvas(BlockKey key, std::span<std::int32_t> ids) {
    fill(key, 0, Purpose::canvas, ids);
    return {};
}

Status CounterNoise::draw(BlockKey key, int step, LogitRows& rows, float temperature,
                          std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!wanted[i]) continue;
        const double u = static_cast<double>(bits(key, step, Purpose::draw, i) >> 11) * 0x1p-53;
        ids[i] = inverse_cdf(rows.stats()[i], rows, static_cast<int>(i), temperature, u);
    }
    return {};
}

Status CounterNoise::renoise(BlockKey key, int step, std::span<std::int32_t> ids) {
    fill(key, step, Purpose::renoise, ids);
    return {};
}

}  // namespace dgemma::diffusion
