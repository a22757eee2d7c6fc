// The backward pass: a reverse walk in which each op has one rule that appends its gradient's nodes.
//
// An activation is read by one op at most, so its gradient is written once, with `=`. The residual stream is the
// exception that makes this cheap: the gradient of a residual add is the same for both its inputs, so one buffer runs
// down the whole model and each norm adds its part to it (`+=`). Parameters may be read twice (a tied head): the first
// writes, the rest add.
#include "program/builder.h"

namespace redline::program {

class Backward {
 public:
  explicit Backward(Builder& b) : b_(b) {}

  void walk() {
    const std::size_t forward_nodes = b_.program_.nodes.size();
    for (std::size_t i = forward_nodes; i-- > 0;) {
      const Node node = b_.program_.nodes[i];  // a copy: rules append to the list
      name_ = node.name;
      b_.scope_.clear();  // node names carry their scope already
      std::visit([&](const auto& op) { rule(op); }, node.op);
    }
  }

 private:
  void rule(const ops::Embed<ValueId>& op) {
    const bool accumulate = claim(op.weight);
    append(ops::EmbedGrad<ValueId>{op.tokens, take(op.y), gradient_of_parameter(op.weight), accumulate});
  }

  void rule(const ops::AddNorm<ValueId>& op) {
    const ValueId residual = op.residual_out.present() ? op.residual_out : op.residual_in;
    const auto from_above = b_.gradient_.find(residual);
    const bool accumulate_residual = from_above != b_.gradient_.end();
    const ValueId dresidual =
        accumulate_residual ? from_above->second : activation("residual gradient", b_.shape(residual));
    const ValueId partial = scratch("norm weight partial sums", {ops::kRowGroups, b_.shape(op.weight)[0]});
    const bool accumulate_weight = claim(op.weight);
    append(ops::AddNormGrad<ValueId>{take(op.y), residual, op.weight, op.rstd, dresidual,
                                     gradient_of_parameter(op.weight), partial, accumulate_residual,
                                     accumulate_weight});
    b_.gradient_[op.residual_in] = dresidual;
    if (op.branch.present()) b_.gradient_[op.branch] = dresidual;
  }

  void rule(const ops::Linear<ValueId>& op) {
    const ValueId dy = take(op.y);
    const bool accumulate = claim(op.weight);
    append(ops::LinearWeightGrad<ValueId>{op.x, dy, gradient_of_parameter(op.weight), accumulate}, "/weight");
    append(ops::LinearInputGrad<ValueId>{dy, op.weight, give(op.x)}, "/input");
  }

  void rule(const ops::RopeQkNorm<ValueId>& op) {
    ops::RopeQkNormGrad<ValueId> grad{.dqkv = b_.gradient_.at(op.qkv),
                                      .q_norm = op.q_norm,
                                      .k_norm = op.k_norm,
                                      .positions = op.positions,
                                      .table = op.table,
                                      .raw = op.raw,
                                      .rstd = op.rstd,
                                      .dq_norm = {},
                                      .dk_norm = {},
                                      .partial = {}};
    grad.layout = op.layout;
    grad.over = op.over;
    if (op.q_norm.present()) {
      grad.dq_norm = gradient_of_parameter(op.q_norm);
      grad.dk_norm = gradient_of_parameter(op.k_norm);
      grad.partial =
          scratch("qk-norm partial sums", {ops::kRowGroups, b_.shape(op.q_norm)[0] + b_.shape(op.k_norm)[0]});
      grad.accumulate = claim(op.q_norm);
      claim(op.k_norm);
    }
    append(grad);
  }

  void rule(const ops::Attention<ValueId>& op) {
    const ValueId delta = scratch("attention delta", b_.shape(op.lse));
    ValueId workspace;
    if (b_.lowering_.attention_workspace)
      workspace = b_.make(name_ + " workspace", {ops::library_workspace_bytes(op.layout, b_.shape(op.qkv)[0])},
                          Role::scratch, DType::u8);
    append(ops::AttentionGrad<ValueId>{op.qkv, op.doc_offsets, op.out, op.lse, take(op.out), give(op.qkv), delta,
                                       workspace, op.layout, op.scale, op.longest});
  }

  void rule(const ops::SwiGlu<ValueId>& op) {
    append(ops::SwiGluGrad<ValueId>{op.gate_up, take(op.y), give(op.gate_up)});
  }

  void rule(const ops::Dropout<ValueId>& op) {
    // Not in place: what arrives here is the residual stream's gradient, which others still need.
    append(ops::Dropout<ValueId>{take(op.y), op.state, give(op.x), op.p, op.stream});
  }

  void rule(const ops::LmLoss<ValueId>&) {}  // it has made its gradient together with the loss

  template <class Other>
  void rule(const Other&) {
    REDLINE_CHECK(false, "{} has no backward rule", Other::kName);
  }

  // The gradient of an op's output: somebody above must have written it.
  ValueId take(ValueId output) {
    const auto it = b_.gradient_.find(output);
    REDLINE_CHECK(it != b_.gradient_.end(), "no gradient has reached {}", b_.set_.at(output).name);
    return it->second;
  }

  // A place for the gradient of an op's input.
  ValueId give(ValueId input) {
    REDLINE_CHECK(!b_.gradient_.contains(input), "{} is read twice", b_.set_.at(input).name);
    return b_.gradient_[input] = activation("gradient", b_.shape(input));
  }

  ValueId gradient_of_parameter(ValueId parameter) { return b_.gradient_of_parameter_.at(parameter); }

  // Whether this contribution adds to the parameter's gradient; from now on all do.
  bool claim(ValueId parameter) {
    const bool accumulate = b_.lowering_.accumulate || b_.parameter_written_[parameter];
    b_.parameter_written_[parameter] = true;
    return accumulate;
  }

  ValueId activation(std::string_view what, Shape shape) {
    return b_.activation(fmt::format("{} {}", name_, what), shape);
  }
  ValueId scratch(std::string_view what, Shape shape) {
    return b_.make(fmt::format("{} {}", name_, what), shape, Role::scratch, DType::f32);
  }
  void append(Op op, std::string_view part = "") {
    b_.append(std::move(op), Phase::backward, name_ + std::string(part));
  }

  Builder& b_;
  std::string name_;  // of the forward node whose rule runs
};

void Builder::backward() {
  REDLINE_CHECK(lowering_.training, "backward() of a program that kept nothing for it");
  Backward(*this).walk();
  program::recompute(set_, program_, lowering_.recompute);
}

}  // namespace redline::program
