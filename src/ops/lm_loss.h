// Language-model head and cross entropy in chunks of rows: the whole logits never exist, dlogits overwrite logits.
//   logits = x * weight^T;  losses[i] = logsumexp(logits[i]) - logits[i][targets[i]];  loss_sum (+)= sum of losses
// Sums are unscaled: one over the number of pairs is applied once, in the update. Rows without a target (negative) lose
// 0. With dx and dweight present the gradient is made in the same pass (training); without them it is the loss alone:
//   dlogits = softmax(logits) - onehot(target), 0 without a target
//   dx = dlogits * weight;  dweight (+)= dlogits^T * x
// With z_loss it is the gradient of losses + z_loss * logsumexp^2, though losses stay as they are:
//   dlogits = (1 + 2 z_loss logsumexp) softmax(logits) - onehot(target)
// These two products may take operands in eight bits (ops/fp8.h); logits are always a product of what x and weight are.
#pragma once

#include "base/tensor.h"
#include "ops/fp8.h"
#include "ops/how.h"

namespace redline::ops {

// dlogits are in [-1, 1], or little outside of it with z_loss, and not scaled by anything, so their scale is known
// beforehand. e5m2 holds up to 57344, and with this scale down to 2^-31: softmax gives less than that to a token only
// where it does not matter.
inline constexpr float kDlogitsScale = 0x1p15f;

// The operands in eight bits that the gradients of a head take. Everything by rows of what is summed over: tokens or
// the vocabulary, of which both are multiples of 16, as are the rows of a chunk.
template <class T>
struct HeadInFp8 {
  T x{};              // [d, n]  e4m3: x by columns
  T x_scale{};        // Fp8Scale
  T weight{};         // [d, V]  e4m3: the weight by columns
  T weight_scale{};   // Fp8Scale
  T dlogits_scale{};  // Fp8Scale: of kDlogitsScale
  T dlogits{};        // [V, chunk]  e5m2 scratch: a chunk's by columns, its rows next to each other. By rows a card has
                      // them in the memory of the logits, a row in the first half of what its logits had.

  bool present() const { return x.present(); }
  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return HeadInFp8<U>{f("x in fp8", x, Access::read),
                        f("x scale", x_scale, Access::read),
                        f("weight in fp8", weight, Access::read),
                        f("weight scale", weight_scale, Access::read),
                        f("dlogits scale", dlogits_scale, Access::read),
                        f("dlogits", dlogits, Access::write)};
  }
};

template <class T>
struct LmLoss {
  static constexpr std::string_view kName = "lm_loss";
  static constexpr Again kAgain = Again::never;
  T x;         // [n, d]
  T weight;    // [V, d]
  T targets;   // [n] i32
  T losses;    // [n]      =
  T loss_sum;  // [1] f64  = or +=
  T logits;    // [chunk, V]  scratch
  T dx;        // [n, d]   =        or absent
  T dweight;   // [V, d]   = or +=  or absent
  bool accumulate_loss{};
  bool accumulate_weight{};
  T workspace{};  // bytes of scratch for a library; absent: it does without
  ProductHow how{};
  // The type of logits and dlogits between the products: a kernel that computes in another type rounds them to it.
  DType stored = DType::f32;
  HeadInFp8<T> fp8{};  // absent: the gradients' products take the operands of the logits'
  float z_loss = 0;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return LmLoss<U>{f("x", x, Access::read),
                     f("weight", weight, Access::read),
                     f("targets", targets, Access::read),
                     f("losses", losses, Access::write),
                     f("loss_sum", loss_sum, written_or_added(accumulate_loss)),
                     f("logits", logits, Access::write),
                     f("dx", dx, Access::write),
                     f("dweight", dweight, written_or_added(accumulate_weight)),
                     accumulate_loss,
                     accumulate_weight,
                     f("workspace", workspace, Access::write),
                     how,
                     stored,
                     fp8.map(f),
                     z_loss};
  }
  double flops() const {
    const double product = 2.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements());
    return dx.present() ? 3 * product : product;
  }
};

}  // namespace redline::ops
