// The two ends of a decoder pass that walk the vocabulary: logits with their statistics, and the soft
// embedding of the logits of the pass before.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/plain_machine.h"

namespace dgemma::backend::cpu {

// As Backend's functions of these names. cutoff: nats below a row's largest entry that a soft embedding
// leaves out; infinity: none.
void head(PlainMachine& machine, const HeadArgs& args);
void soft_embed(PlainMachine& machine, HostLogits& logits, const WeightView& table, float scale, float cutoff,
                const Mat& out);

}  // namespace dgemma::backend::cpu
