// The backward pass: a reverse walk in which each op has one rule that appends its gradient's nodes.
//
// A loss makes the gradient of its input in the forward pass, and a program may have several of them; the walk begins
// with each. A gradient is written by its value's last reader and added to by the others. The residual stream makes
// this cheap: the gradient of a residual add is the same for both its inputs, so one buffer runs down the whole model
// and each norm adds its part to it (`+=`). Parameters may be read twice as well (a tied head): the first writes, the
// rest add.
#include <algorithm>
#include <utility>

#include "program/builder.h"

namespace redline::program {
namespace {

// Ops that no training program has before its backward pass: gradients, decoding, the update.
template <class Op, class... Others>
constexpr bool kOneOf = (std::is_same_v<Op, Others> || ...);
template <class Op>
constexpr bool kNeverForward =
    kOneOf<Op, ops::EmbedGrad<ValueId>, ops::Copy<ValueId>, ops::Add<ValueId>, ops::AddNormGrad<ValueId>,
           ops::LinearInputGrad<ValueId>, ops::LinearWeightGrad<ValueId>, ops::BiasGrad<ValueId>,
           ops::GroupedLinearInputGrad<ValueId>, ops::GroupedLinearWeightGrad<ValueId>, ops::GroupedFp8Product<ValueId>,
           ops::GroupedFp8WeightGrad<ValueId>, ops::RouteGrad<ValueId>, ops::CombineGrad<ValueId>,
           ops::RopeQkNormGrad<ValueId>, ops::AttentionGrad<ValueId>, ops::SwiGluGrad<ValueId>,
           ops::SortTokens<ValueId>, ops::CacheStore<ValueId>, ops::AttentionCached<ValueId>, ops::Quantize<ValueId>,
           ops::QuantizeWeight<ValueId>, ops::BoundScale<ValueId>, ops::MoveScales<ValueId>, ops::Largest<ValueId>,
           ops::SetScales<ValueId>, ops::Fp8Product<ValueId>, optim::SumSquares<ValueId>, optim::GradNorm<ValueId>,
           optim::AdamW<ValueId>, optim::Refresh<ValueId>, optim::Average<ValueId>, optim::Exchange<ValueId>,
           optim::TensorSums<ValueId>, ops::Orthogonalize<ValueId>, optim::MuonMomentum<ValueId>, optim::Muon<ValueId>,
           optim::RoundAtRandom<ValueId>, optim::Widen<ValueId>, ops::Custom<ValueId>, dist::AllReduce<ValueId>,
           dist::ReduceShards<ValueId>, dist::GatherShards<ValueId>>;

class Backward {
 public:
  explicit Backward(Writer& writer) : w_(writer) {}

  void walk() {
    const std::size_t forward_nodes = w_.program().nodes.size();
    if (w_.lowering().on_card()) sort_tokens();
    for (std::size_t i = forward_nodes; i-- > 0;) {
      const Node node = w_.program().nodes[i];  // a copy: rules append to the list
      name_ = node.name;
      w_.set_place(node.place);
      std::visit([&](const auto& op) { rule(op); }, node.op);
      for (const ValueId output : taken_) w_.release(output);
      taken_.clear();
    }
  }

 private:
  // The order in which a card adds to the rows of an embedding follows from the tokens alone: it is made beside the way
  // back, whose last node wants it.
  void sort_tokens() {
    for (const Node& node : w_.program().nodes) {
      const auto* const embed = std::get_if<ops::Embed<ValueId>>(&node.op);
      if (!embed) continue;
      w_.set_place(node.place);
      ops::SortTokens<ValueId>& op = sorted_[embed->tokens].op;
      op.vocab = std::max(op.vocab, w_.shape(embed->weight)[0]);
    }
    for (auto& [tokens, sorted] : sorted_) {
      const std::int64_t n = w_.shape(tokens)[0];
      sorted.op.tokens = tokens;
      sorted.op.order = w_.make("order of tokens", {2, n}, Role::activation, DType::i32);
      sorted.op.temporary = w_.scratch("sort", {ops::sort_bytes(n)}, DType::u8);
      sorted.pair = w_.start(sorted.op, Phase::backward, "sort of tokens");
    }
  }

  void rule(const ops::Embed<ValueId>& op) {
    const bool accumulate = w_.claim(op.weight);
    ops::EmbedGrad<ValueId> grad{op.tokens, take(op.y), w_.gradient_of_parameter(op.weight), accumulate, op.padding};
    grad.scale = op.scale;
    if (const auto it = sorted_.find(op.tokens); it != sorted_.end()) {
      Sorted& sorted = it->second;
      if (!std::exchange(sorted.waited, true)) w_.wait(sorted.pair);
      grad.order = sorted.op.order;
      const std::int64_t d = w_.shape(op.y)[1];
      grad.pieces = scratch("pieces", {ops::piece_rows_within_limit(w_.shape(op.tokens)[0], d), d});
    }
    append(grad);
  }

  void rule(const ops::AddNorm<ValueId>& op) {
    const ValueId residual = op.residual_out.present() ? op.residual_out : op.residual_in;
    const ValueId dy = take(op.y),
                  partial = scratch("norm weight partial sums", {ops::kRowGroups, w_.shape(op.weight)[0]});
    const bool accumulate_weight = w_.claim(op.weight);
    give(residual, "residual gradient", true, [&](ValueId dresidual, bool add) {
      append(ops::AddNormGrad<ValueId>{dy,
                                       residual,
                                       op.weight,
                                       op.rstd,
                                       dresidual,
                                       w_.gradient_of_parameter(op.weight),
                                       partial,
                                       add,
                                       accumulate_weight,
                                       {},
                                       op.one_plus});
    });
    if (!op.branch.present()) return;
    const ValueId sum = take(op.residual_out);
    pass_on(op.residual_in, sum);
    pass_on(op.branch, sum);
  }

  void rule(const ops::NormAdd<ValueId>& op) {
    const ValueId dout = take(op.residual_out),
                  partial = scratch("norm weight partial sums", {ops::kRowGroups, w_.shape(op.weight)[0]});
    const bool accumulate_weight = w_.claim(op.weight);
    give(op.branch, "gradient", true, [&](ValueId dbranch, bool add) {
      append(ops::AddNormGrad<ValueId>{dout,
                                       op.branch,
                                       op.weight,
                                       op.rstd,
                                       dbranch,
                                       w_.gradient_of_parameter(op.weight),
                                       partial,
                                       add,
                                       accumulate_weight,
                                       {},
                                       op.one_plus});
    });
    pass_on(op.residual_in, dout);
  }

  void rule(const ops::Linear<ValueId>& op) {
    const ValueId dy = take(op.y);
    if (op.bias.present()) {  // first: products in eight bits read copies of dy, which is then free
      const bool add = w_.claim(op.bias);
      const ValueId partial = scratch("bias partial sums", {ops::kRowGroups, w_.shape(op.bias)[0]});
      append(ops::BiasGrad<ValueId>{dy, w_.gradient_of_parameter(op.bias), add, partial}, "/bias");
    }
    const bool accumulate = w_.claim(op.weight);
    append(ops::LinearWeightGrad<ValueId>{op.x, dy, w_.gradient_of_parameter(op.weight), accumulate,
                                          w_.product_workspace(), op.how},
           "/weight");
    give(op.x, "gradient", true, [&](ValueId dx, bool add) {
      append(ops::LinearInputGrad<ValueId>{dy, op.weight, dx, add, w_.product_workspace(), op.how}, "/input");
    });
  }

  void rule(const ops::GroupedLinear<ValueId>& op) {
    const ValueId dy = take(op.y);
    const bool accumulate = w_.claim(op.weight);
    append(ops::GroupedLinearWeightGrad<ValueId>{op.x, dy, op.offsets, w_.gradient_of_parameter(op.weight), accumulate,
                                                 w_.product_workspace(), op.how},
           "/weight");
    give(op.x, "gradient", true, [&](ValueId dx, bool add) {
      append(ops::GroupedLinearInputGrad<ValueId>{dy, op.weight, op.offsets, dx, add, w_.product_workspace(), op.how},
             "/input");
    });
  }

  void rule(const ops::Route<ValueId>& op) {
    const ValueId dweights = take(op.weights), balance = w_.gradient_of(op.probs);
    const bool accumulate_weight = w_.claim(op.weight);
    const ValueId dlogits = scratch("dlogits", w_.shape(op.probs));
    give(op.x, "gradient", true, [&](ValueId dx, bool add) {
      append(ops::RouteGrad<ValueId>{op.x, op.weight, op.probs, op.lse, op.choices, op.weights, dweights, balance, dx,
                                     w_.gradient_of_parameter(op.weight), dlogits, op.normalise, add, accumulate_weight,
                                     w_.product_workspace(), op.how, op.layer});
    });
  }
  // The balance of experts has one gradient for the probabilities of a layer's tokens: a row, which the loss makes.
  void rule(const ops::BalanceLoss<ValueId>& op) {
    if (op.gradient.present()) w_.hold(op.load, op.gradient);
  }
  void rule(const ops::RouterLoad<ValueId>& op) {
    if (const ValueId gradient = w_.gradient_of(op.load); gradient.present()) w_.hold(op.probs, gradient);
  }
  void rule(const ops::SortByExpert<ValueId>&) {}
  void rule(const ops::GatherRows<ValueId>& op) {
    const ValueId dy = take(op.y);
    give(op.x, "gradient", true, [&](ValueId dx, bool add) {
      append(ops::Combine<ValueId>{dy, {}, {}, op.places, dx, add});
    });
  }
  void rule(const ops::Combine<ValueId>& op) {
    const ValueId dout = take(op.out), dweights = w_.statistic("gradient of weights", w_.shape(op.weights));
    give(op.y, "gradient", false, [&](ValueId dy, bool) {
      append(ops::CombineGrad<ValueId>{dout, op.y, op.weights, op.rows, op.places, dy, dweights});
    });
    w_.hold(op.weights, dweights);
  }

  void rule(const ops::RopeQkNorm<ValueId>& op) {
    REDLINE_CHECK(w_.gradient_of(op.qkv).present() && w_.holds_alone(op.qkv), "no gradient of its own has reached {}",
                  w_.at(op.qkv).full_name());
    ops::RopeQkNormGrad<ValueId> grad{.dqkv = w_.gradient_of(op.qkv),
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
    grad.one_plus = op.one_plus;
    if (op.q_norm.present()) {
      grad.dq_norm = w_.gradient_of_parameter(op.q_norm);
      grad.dk_norm = w_.gradient_of_parameter(op.k_norm);
      grad.partial =
          scratch("qk-norm partial sums", {ops::kRowGroups, w_.shape(op.q_norm)[0] + w_.shape(op.k_norm)[0]});
      grad.accumulate = w_.claim(op.q_norm);
      w_.claim(op.k_norm);
    }
    append(grad);
  }

  void rule(const ops::Attention<ValueId>& op) {
    const ValueId delta = scratch("attention delta", w_.shape(op.lse)), dout = take(op.out);
    ValueId workspace;
    if (w_.lowering().library_attention() && op.how.bits == ops::Bits::free)
      workspace = w_.scratch(
          name_ + " workspace",
          {ops::library_grad_workspace_bytes(op.layout, w_.shape(op.qkv)[0], w_.shape(op.doc_offsets)[0] - 1)},
          DType::u8);
    give(op.qkv, "gradient", false, [&](ValueId dqkv, bool) {
      append(ops::AttentionGrad<ValueId>{op.qkv, op.doc_offsets, op.out, op.lse, dout, dqkv, delta, workspace,
                                         op.layout, op.scale, op.longest, op.tiles, op.how, op.window});
    });
  }

  // What is taken apart comes together on its way back, and the other way round.
  void rule(const ops::SplitHeads<ValueId>& op) {
    const ValueId slope = take(op.join ? op.whole : op.parts);
    give(op.join ? op.parts : op.whole, "gradient", false, [&](ValueId to, bool) {
      append(ops::SplitHeads<ValueId>{op.join ? slope : to, op.join ? to : slope, op.layout, op.ranks, !op.join});
    });
  }
  void rule(const dist::AllToAll<ValueId>& op) {
    const ValueId slope = take(op.to);
    give(op.from, "gradient", false, [&](ValueId to, bool) { append(dist::AllToAll<ValueId>{slope, to, op.among}); });
  }

  void rule(const ops::SwiGlu<ValueId>& op) {
    const ValueId dy = take(op.y);
    give(op.gate_up, "gradient", false, [&](ValueId dx, bool) {
      append(ops::SwiGluGrad<ValueId>{op.gate_up, dy, dx, {}, op.gate});
    });
  }

  void rule(const ops::Dropout<ValueId>& op) {
    // Not in place: what arrives here is the residual stream's gradient, which others still need.
    const ValueId dy = take(op.y);
    give(op.x, "gradient", false, [&](ValueId dx, bool) {
      append(ops::Dropout<ValueId>{dy, op.state, dx, op.p, op.stream});
    });
  }

  void rule(const ops::DocumentTiles<ValueId>&) {}
  void rule(const ops::LmLoss<ValueId>& op) { pass_on(op.x, op.dx); }  // made together with the loss

  template <class Other>
  void rule(const Other&) {
    static_assert(kNeverForward<Other>, "an op that can stand in a forward pass needs its rule here");
    REDLINE_CHECK(false, "{} stands in a forward pass", Other::kName);
  }

  // The gradient of an op's output: somebody above must have written it. It is held until the rule has ended: its nodes
  // read it, so none of them may add to it.
  ValueId take(ValueId output) {
    const ValueId gradient = w_.gradient_of(output);
    REDLINE_CHECK(gradient.present(), "no gradient has reached {}", w_.at(output).full_name());
    taken_.push_back(output);
    return gradient;
  }

  // The gradient of an op's input: put(where, add) appends the node that writes it, or adds it to another reader's
  // where it can and may.
  template <class Put>
  void give(ValueId input, std::string_view what, bool can_add, const Put& put) {
    const ValueId before = w_.gradient_of(input);
    if (before.present() && can_add && w_.holds_alone(input)) return put(before, true);
    const ValueId gradient = activation(what, input);
    put(gradient, false);
    pass_on(input, gradient);
  }

  // Takes a gradient that has been written already as an input's gradient, or as a part of it.
  void pass_on(ValueId input, ValueId gradient) {
    const ValueId before = w_.gradient_of(input);
    if (!before.present()) return w_.hold(input, gradient);
    const ValueId sum = activation("gradient sum", input);
    append(ops::Add<ValueId>{before, gradient, sum}, "/sum");
    w_.hold(input, sum);
  }

  ValueId activation(std::string_view what, ValueId like) {
    return w_.activation(fmt::format("{} {}", name_, what), w_.shape(like));
  }
  ValueId scratch(std::string_view what, Shape shape) { return w_.scratch(fmt::format("{} {}", name_, what), shape); }
  void append(Op op, std::string_view part = "") {
    w_.append(std::move(op), Phase::backward, name_ + std::string(part));
  }

  struct Sorted {
    ops::SortTokens<ValueId> op;
    std::int32_t pair = -1;
    bool waited = false;
  };

  Writer& w_;
  std::string name_;                  // of the forward node whose rule runs
  std::vector<ValueId> taken_;        // outputs whose gradient the rule reads
  std::map<ValueId, Sorted> sorted_;  // by tokens
};

}  // namespace

void append_backward(Writer& writer) { Backward(writer).walk(); }

}  // namespace redline::program
