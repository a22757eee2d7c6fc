// Counts passes over the operands of the nodes that are fused.
#include "perf/fused.h"

#include <variant>

#include "base/error.h"
#include "model/lowering.h"

namespace redline::perf {
namespace {

// An unfused AdamW in fp32: m and v (read with the gradient, written), the root of v (read, written), the step (m, root
// and weight read, weight written), the decay (weight read and written), and the working copy read from the weight.
constexpr double kAdamWBytes = 4 * (3 + 3 + 2 + 4 + 2 + 1);

class Count {
 public:
  Count(const program::ProgramSet& set, double micro_batches) : set_(set), micro_batches_(micro_batches) {}

  void node(const program::Node& node) {
    if (node.phase == program::Phase::recompute) return;
    std::visit([&](const auto& op) { add(op, node); }, node.op);
  }
  double qkv = 0, norms = 0, adamw = 0, swiglu = 0;

 private:
  double bytes(program::ValueId id) const { return id.present() ? static_cast<double>(set_.at(id).bytes()) : 0; }

  template <class Op>
  void add(const Op&, const program::Node&) {}
  // Three products instead of one read their input twice more.
  void add(const ops::Linear<program::ValueId>& op, const program::Node& node) {
    if (node.name == "qkv") qkv += 2 * micro_batches_ * bytes(op.x);
    if (node.name == "gate_up") swiglu += micro_batches_ * bytes(op.x);
  }
  // On the way back two of them add to what the first has written.
  void add(const ops::LinearInputGrad<program::ValueId>& op, const program::Node& node) {
    if (node.name.starts_with("qkv")) qkv += 4 * micro_batches_ * bytes(op.dx);
    if (node.name.starts_with("gate_up")) swiglu += 2 * micro_batches_ * bytes(op.dx);
  }
  void add(const ops::LinearWeightGrad<program::ValueId>& op, const program::Node& node) {
    if (node.name.starts_with("qkv")) qkv += 2 * micro_batches_ * bytes(op.x);
    if (node.name.starts_with("gate_up")) swiglu += micro_batches_ * bytes(op.x);
  }
  // A norm of its own reads the sum again that the residual add has just written; on the way back its gradient would be
  // written, and read by the add of the branch's.
  void add(const ops::AddNorm<program::ValueId>& op, const program::Node&) {
    if (op.residual_out.present()) norms += micro_batches_ * bytes(op.residual_out);
  }
  void add(const ops::AddNormGrad<program::ValueId>& op, const program::Node&) {
    norms += 2 * micro_batches_ * bytes(op.dresidual);
  }
  void add(const optim::AdamW<program::ValueId>& op, const program::Node& node) {
    const double elements = static_cast<double>(set_.at(op.parameters).shape.elements());
    adamw += std::max(0.0, elements * kAdamWBytes + bytes(op.working) - node.cost.bytes);
  }

  const program::ProgramSet& set_;
  double micro_batches_;
};

}  // namespace

std::vector<Fused> fused_savings(const config::Config& config, device::Kind kind) {
  const model::LoweredModel lowered = model::lower(config.model, model::lowering_options(config, kind));
  Count count(lowered.set, static_cast<double>(config.train.accumulate));
  for (const program::Node& node : lowered.set.find(model::kFirst).nodes) count.node(node);
  for (const program::Node& node : lowered.set.find(model::kUpdate).nodes) count.node(node);
  return {{"fused QKV", "one product for queries, keys and values: three read their input and add its gradient apart",
           count.qkv},
          {"fused gate and up", "one product for both halves of SwiGLU, likewise", count.swiglu},
          {"fused norms", "the residual add and RMSNorm in one pass, and their gradients in one", count.norms},
          {"fused AdamW", "moments, weights, decay and working copies in one pass over flat arrays", count.adamw}};
}

}  // namespace redline::perf
