// The dense MLP, the router and the experts of the plain backend.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/plain_machine.h"

namespace dgemma::backend::cpu {

// As Backend's functions of these names.
void gated_mlp(PlainMachine& machine, const Mat& x, const WeightView& gate, const WeightView& up,
               const WeightView& down, const Mat& out);
void route(PlainMachine& machine, const Mat& h, const RouterWeights& weights, const Routing& out);
void experts(PlainMachine& machine, const Mat& x, const Routing& routing, const WeightView& gate_up,
             const WeightView& down, const Mat& out);

}  // namespace dgemma::backend::cpu
