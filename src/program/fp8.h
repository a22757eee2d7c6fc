// Another lowering of the same step: products of linears with operands in eight bits (ops/fp8.h). A pass over a program
// with its backward pass, before anything is computed again: whoever makes a value that such a product reads writes it
// in eight bits as well, or instead where nobody else reads it, and a node of its own does where its maker cannot.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "program/writer.h"

namespace redline::program {

// A tensor's scale, and where its largest magnitude is recorded.
struct Fp8Entry {
  ValueId scale, amax;
};

// The persistent values of one linear, and which of its products are in eight bits.
struct Fp8Linear {
  bool output = false, input_grad = false, weight_grad = false;
  ValueId weight_rows, weight_columns, weight_scale;  // copies of the weight, where a product reads them
  Fp8Entry x, dy;
};

struct Fp8Linears {
  std::map<ValueId, Fp8Linear> by_weight;
  ValueId head_weight;           // absent: the head's gradients take what its logits do
  ops::HeadInFp8<ValueId> head;  // what persists of them; x and dlogits are a program's own
  // Scales that follow from a norm's weights rather than from what was recorded: found by the pass.
  std::map<ValueId, ValueId> bounds;  // scale to weights
  bool fast_sums = true;              // of outputs (ops/how.h)
};

// The copies in eight bits that an op writes of one result.
struct Fp8Written {
  ValueId rows, columns;  // either may be absent
  ValueId scale;
  ValueId any() const { return rows.present() ? rows : columns; }
};
void each_fp8_copy(const Op& op, const std::function<void(const Fp8Written&)>& visit);

// Rewrites the products of the program that the writer holds.
void products_in_fp8(Writer& writer, Fp8Linears& linears);

}  // namespace redline::program
