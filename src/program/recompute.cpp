// Copies forward nodes to where the backward pass of their layer begins, and lets it read the copies' values.
#include "program/recompute.h"

#include <map>
#include <set>

#include "program/cost.h"

namespace redline::program {
namespace {

// "layer 3" of "layer 3/qkv/backward"; nodes outside a layer have none.
std::string scope_of(const Node& node) {
  const std::size_t slash = node.name.find('/');
  return node.name.starts_with("layer ") && slash != std::string::npos ? node.name.substr(0, slash) : "";
}

// One layer: its forward nodes, and which of their values its backward nodes read.
class Layer {
 public:
  Layer(ProgramSet& set, Recompute what) : set_(set), what_(what) {}

  void add_forward(const Node& node) { forward_.push_back(node); }
  void add_backward(const Node& node) {
    each_operand(node.op, [&](std::string_view, ValueId id, Access) { needed_.insert(set_.owner(id)); });
  }

  // The nodes that make again what is needed, in the order of the forward pass.
  std::vector<Node> again() {
    std::vector<Node> nodes;
    for (std::size_t i = forward_.size(); i-- > 0;) {  // from the last: what a copy reads is needed as well
      if (!chosen(i) || !writes_needed(forward_[i])) continue;
      nodes.insert(nodes.begin(), i == 0 ? from_residual(forward_[i]) : forward_[i]);
      each_operand(nodes.front().op, [&](std::string_view, ValueId id, Access) { needed_.insert(set_.owner(id)); });
    }
    for (const Node& node : nodes) {
      each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
        id = set_.owner(id);
        if (access == Access::write && !persistent(set_.at(id).role) && !copies_.contains(id))
          copies_[id] = copy_of(id);
      });
    }
    for (Node& node : nodes) {
      substitute(node);
      node.phase = Phase::recompute;
      node.name += "/again";
      node.cost = cost_of(node.op, set_.values);
    }
    return nodes;
  }

  void substitute(Node& node) {
    std::visit([&](auto& op) { op = op.map([&](std::string_view, ValueId id, Access) { return substitute(id); }); },
               node.op);
  }

 private:
  bool chosen(std::size_t i) const {
    if (what_ == Recompute::block) return true;
    if (std::holds_alternative<ops::SwiGlu<ValueId>>(forward_[i].op)) return true;
    if (i + 1 == forward_.size()) return false;
    const auto* next = std::get_if<ops::SwiGlu<ValueId>>(&forward_[i + 1].op);
    const auto* product = std::get_if<ops::Linear<ValueId>>(&forward_[i].op);
    return next && product && next->gate_up == product->y;
  }

  bool writes_needed(const Node& node) const {
    bool needed = false;
    each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
      needed = needed || (access != Access::read && needed_.contains(set_.owner(id)));
    });
    return needed;
  }

  // The layer's first node adds the last branch to the residual stream. The sum is what is kept, so that neither addend
  // has to be: its norm is taken again of the sum as it was stored.
  static Node from_residual(Node node) {
    auto& norm = std::get<ops::AddNorm<ValueId>>(node.op);
    if (norm.branch.present()) norm.residual_in = norm.residual_out;
    norm.branch = norm.residual_out = kAbsent;
    return node;
  }

  ValueId copy_of(ValueId id) {
    Value value = set_.at(id);
    value.name += " again";
    set_.values.push_back(std::move(value));
    return {static_cast<std::int32_t>(set_.values.size()) - 1};
  }

  // A view of what was copied becomes a view of the copy.
  ValueId substitute(ValueId id) {
    if (!id.present()) return id;
    if (const auto it = copies_.find(id); it != copies_.end()) return it->second;
    const ValueId whole = set_.at(id).alias_of;
    if (!whole.present()) return id;
    const ValueId copy = substitute(whole);
    if (copy == whole) return id;
    const ValueId view = copies_[id] = copy_of(id);
    set_.values[static_cast<std::size_t>(view.index)].alias_of = copy;
    return view;
  }

  ProgramSet& set_;
  Recompute what_;
  std::vector<Node> forward_;
  std::set<ValueId> needed_;           // owners of bytes
  std::map<ValueId, ValueId> copies_;  // of what is made again
};

}  // namespace

void recompute(ProgramSet& set, Program& program, Recompute what) {
  if (what == Recompute::none) return;
  std::map<std::string, Layer> layers;
  std::string last;
  for (const Node& node : program.nodes) {
    const std::string scope = scope_of(node);
    if (scope.empty()) continue;
    Layer& layer = layers.try_emplace(scope, set, what).first->second;
    if (node.phase == Phase::forward) {
      layer.add_forward(node);
      last = scope;
    } else {
      layer.add_backward(node);
    }
  }
  layers.erase(last);

  std::vector<Node> nodes;
  std::set<std::string> begun;
  for (Node& node : program.nodes) {
    const auto layer = node.phase == Phase::backward ? layers.find(scope_of(node)) : layers.end();
    if (layer != layers.end()) {
      if (begun.insert(layer->first).second)
        for (Node& again : layer->second.again()) nodes.push_back(std::move(again));
      layer->second.substitute(node);
    }
    nodes.push_back(std::move(node));
  }
  program.nodes = std::move(nodes);
}

}  // namespace redline::program
