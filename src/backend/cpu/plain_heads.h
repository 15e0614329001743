// What attention reads of a layer's input: projections, norms of heads, and their rotation by position.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/plain_machine.h"

namespace dgemma::backend::cpu {

// Cosines and sines of the angles that positions turn heads by. Every layer of a pass asks for those of the
// same positions, for queries and for keys, and layers of one kind have the same frequencies: they are
// computed once.
class RotaryAngles {
  public:
    // [positions][2][half]: cosines, then sines, rounded as the machine rounds; valid until other positions
    // are asked for. frequencies: f32 [half].
    const float* of(PlainMachine& machine, std::span<const float> frequencies,
                    std::span<const std::int32_t> positions);

  private:
    struct Table {
        std::vector<float> frequencies;
        std::vector<std::int32_t> positions;
        Scratch values;
    };
    std::deque<Table> tables_;
    std::size_t next_ = 0;  // to be given up for other frequencies
};

// As Backend's functions of these names.
void norm_heads(PlainMachine& machine, RotaryAngles& angles, const Mat& x, int head_dim, const Weight* weight,
                float eps, const Weight* frequencies, std::span<const std::int32_t> positions);
void attention_inputs(PlainMachine& machine, RotaryAngles& angles, const AttentionInputs& args);

}  // namespace dgemma::backend::cpu
