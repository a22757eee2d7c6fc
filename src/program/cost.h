// The least work of a node, from the shapes of its operands: the sum over nodes is the step's FLOPs and bytes.
#pragma once

#include "program/program.h"

namespace redline::program {

// Bytes count every operand once for each direction it moves in, and scratch not at all, unless the op's header has its
// own cost.
Cost cost_of(const Op& op, const std::vector<Value>& values);

// FLOPs of a set of nodes for a batch in which `fill` of the token slots are real and the mask keeps `score_pairs`.
// Padding does not count; neither do products that are made again, nor those of the update.
struct ModelFlops {
  double per_slot_products = 0;  // products of all token slots, padding or not: multiply by the fill
  double per_pair = 0;           // attention
  double operator()(double fill, double score_pairs) const { return per_slot_products * fill + per_pair * score_pairs; }
};
ModelFlops model_flops(const Program& program);

}  // namespace redline::program
