// The temperature of each denoising step.
#pragma once

namespace dgemma::diffusion {

// T of step n, which counts down from `steps` to 1: t_min + (t_max - t_min) * n / steps, in the f32
// arithmetic of the reference (contract/generation.md 3). It starts at t_max and never reaches t_min. Logits
// are divided by it; multiplying by the reciprocal gives other numbers.
float temperature(int n, int steps, double t_min, double t_max);

}  // namespace dgemma::diffusion
