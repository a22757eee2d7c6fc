// Language-model head and cross entropy in chunks of rows: the whole logits never exist, dlogits overwrite logits.
//   logits = x * weight^T;  losses[i] = logsumexp(logits[i]) - logits[i][targets[i]];  loss_sum (+)= sum of losses
// Sums are unscaled: one over the number of pairs is applied once, in the update. Rows without a target (negative) lose 0.
// With dx and dweight present the gradient is made in the same pass (training); without them it is the loss alone:
//   dlogits = softmax(logits) - onehot(target), 0 without a target
//   dx = dlogits * weight;  dweight (+)= dlogits^T * x
#pragma once

#include "base/operand.h"
#include "base/tensor.h"
#include "ops/how.h"

namespace redline::ops {

template <class T>
struct LmLoss {
  static constexpr std::string_view kName = "lm_loss";
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
                     how};
  }
  double flops() const {
    const double product = 2.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements());
    return dx.present() ? 3 * product : product;
  }
};

}  // namespace redline::ops
