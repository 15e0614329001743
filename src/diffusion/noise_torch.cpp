#include "diffusion/noise_torch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace dgemma::diffusion {
namespace {

// softmax(zt / temperature) in f32, the maximum taken off first.
void softmax(std::span<const float> zt, float temperature, std::vector<float>& p) {
    p.resize(zt.size());
    for (std::size_t i = 0; i < zt.size(); ++i) p[i] = temperature == 1 ? zt[i] : zt[i] / temperature;
    const float max = *std::max_element(p.begin(), p.end());
    float sum = 0;
    for (float& x : p) sum += x = std::exp(x - max);
    for (float& x : p) x /= sum;
}

}  // namespace

std::int32_t TorchRandom::below(std::uint32_t width) {
    if (width < 1u << 28) return static_cast<std::int32_t>(word() % width);
    const std::uint64_t high = word();
    return static_cast<std::int32_t>((high << 32 | word()) % width);
}

float TorchRandom::exponential() {
    const std::uint64_t high = word();
    const std::uint64_t bits = high << 32 | word();
    const double u = static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
    return static_cast<float>(-std::log1p(-u));
}

std::int32_t TorchRandom::multinomial(std::span<const float> p) {
    std::size_t best = 0;
    float most = -1;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const float ratio = p[i] / exponential();
        if (ratio > most) most = ratio, best = i;
    }
    return static_cast<std::int32_t>(best);
}

Status TorchNoise::initial_canvas(BlockKey, std::span<std::int32_t> ids) {
    for (auto& id : ids) id = random_.below(vocabulary_);
    return {};
}

Status TorchNoise::draw(BlockKey, int, LogitRows& rows, float temperature,
                        std::span<const std::uint8_t> wanted, std::span<std::int32_t> ids) {
    std::vector<float> p;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (wanted[i]) {
            softmax(rows.row(static_cast<int>(i)), temperature, p);
            ids[i] = random_.multinomial(p);
        } else {
            random_.skip_multinomial(vocabulary_);
        }
    }
    return {};
}

Status TorchNoise::renoise(BlockKey key, int, std::span<std::int32_t> ids) {
    return initial_canvas(key, ids);
}

}  // namespace dgemma::diffusion
