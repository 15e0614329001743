#include "diffusion/noise.h"

#include "diffusion/noise_counter.h"
#include "diffusion/noise_mlx.h"
#include "diffusion/noise_torch.h"

namespace dgemma::diffusion {

std::unique_ptr<NoiseSource> make_noise(Noise noise, std::uint64_t seed, int vocabulary) {
    switch (noise) {
        case Noise::mlx:
            return std::make_unique<MlxNoise>(seed, vocabulary);
        case Noise::torch_cpu:
            return std::make_unique<TorchNoise>(seed, vocabulary);
        case Noise::counter:
            break;
    }
    return std::make_unique<CounterNoise>(seed, vocabulary);
}

}  // namespace dgemma::diffusion
