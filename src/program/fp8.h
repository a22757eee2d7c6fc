// Lowers products of linears to operands in eight bits (ops/fp8.h). It is a pass over a program with its backward pass,
// before recompute. A node whose result such a product reads writes it in eight bits as well, or instead where nobody
// else reads it. Where that node cannot, a separate node casts.
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
  ValueId head_weight;           // absent: the head's gradients take the operands of its logits
  ops::HeadInFp8<ValueId> head;  // their persistent values; x and dlogits belong to a program
  // Scales that follow from a norm's weights instead of records. The pass finds them.
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
