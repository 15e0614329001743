#include "diffusion/schedule.h"

namespace dgemma::diffusion {

float temperature(int n, int steps, double t_min, double t_max) {
    // One rounding to f32 after each operation, as the reference's tensors have it; the difference of the two
    // bounds is taken in double first. Separate statements, so that no compiler fuses the product and the
    // sum.
    const auto ratio = static_cast<float>(static_cast<double>(n) / steps);
    const auto range = static_cast<float>(t_max - t_min);
    const float above = range * ratio;
    return static_cast<float>(t_min) + above;
}

}  // namespace dgemma::diffusion
