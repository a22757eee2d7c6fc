// Copies forward nodes to where the backward pass of their layer begins, and lets it read the copies' values.
#include <algorithm>
#include <map>
#include <set>

#include "program/passes.h"
#include "program/program.h"

namespace redline::program {
namespace {

// One layer: its forward nodes, and which of their values its backward nodes read.
class Layer {
 public:
  Layer(ProgramSet& set, Recompute what) : set_(set), what_(what) {}

  void add_forward(const Node& node) {
    REDLINE_CHECK(node.when == When::now, "{} is one of a pair: it cannot be made again", node.full_name());
    forward_.push_back(node);
    const bool widest = std::visit([&](const auto& op) { return is_widest(op); }, node.op);
    each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
      if (access == Access::write) made_here_.insert(set_.owner(id));
      if (widest) widest_.insert(set_.owner(id));
    });
  }
  void add_backward(const Node& node) { need_operands(node); }

  // The nodes that make again what is needed, in the order of the forward pass.
  std::vector<Node> again() {
    std::vector<Node> nodes;
    for (std::size_t i = forward_.size(); i-- > 0;) {  // from the last: what a copy reads is needed as well
      if (what_ == Recompute::rest && forward_[i].cost.flops_per_pair > 0) continue;
      if (again_of(forward_[i].op) == ops::Again::never || !writes_one_of(forward_[i], needed_)) continue;
      if (what_ == Recompute::mlp && !writes_one_of(forward_[i], widest_)) continue;
      nodes.push_back(from_kept_sum(forward_[i]));
      need_operands(nodes.back());
    }
    std::ranges::reverse(nodes);
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
  void need_operands(const Node& node) {
    each_operand(node.op, [&](std::string_view, ValueId id, Access) { needed_.insert(set_.owner(id)); });
  }

  bool writes_one_of(const Node& node, const std::set<ValueId>& owners) const {
    bool writes = false;
    each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
      const ValueId owner = set_.owner(id);  // what is updated only, as a list of work, is nothing that the layer makes
      const bool makes = access == Access::write || (access == Access::update && made_here_.contains(owner));
      writes = writes || (makes && owners.contains(owner));
    });
    return writes;
  }

  template <class MadeBy>
  bool is_widest(const MadeBy& op) const {
    constexpr ops::Again kAgain = ops::again_of<MadeBy>();
    if constexpr (kAgain == ops::Again::as_its_input) return widest_.contains(set_.owner(op.x));
    return kAgain == ops::Again::widest;
  }
  static ops::Again again_of(const Op& op) {
    return std::visit([]<class MadeBy>(const MadeBy&) { return ops::again_of<MadeBy>(); }, op);
  }

  // Where the residual stream enters a layer as a sum, the sum is what is kept, so that neither addend has to be.
  Node from_kept_sum(Node node) const {
    std::visit(
        [&](auto& op) {
          if constexpr (requires { op.from_sum(); })
            if (op.addend().present() && !made_here_.contains(set_.owner(op.addend()))) op = op.from_sum();
        },
        node.op);
    return node;
  }

  ValueId copy_of(ValueId id) {
    Value value = set_.at(id);
    value.name += " again";
    return set_.add(std::move(value));
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
    set_.at(view).alias_of = copy;
    return view;
  }

  ProgramSet& set_;
  Recompute what_;
  std::vector<Node> forward_;
  std::set<ValueId> made_here_, widest_, needed_;  // owners of bytes
  std::map<ValueId, ValueId> copies_;              // of what is made again
};

}  // namespace

void recompute(ProgramSet& set, Program& program, Recompute what, std::int64_t most) {
  if (what == Recompute::none) return;
  std::map<std::int32_t, Layer> layers;
  std::int32_t last = kNoLayer;
  for (const Node& node : program.nodes) {
    if (node.place.layer == kNoLayer) continue;
    Layer& layer = layers.try_emplace(node.place.layer, set, what).first->second;
    if (node.phase == Phase::forward) {
      layer.add_forward(node);
      last = node.place.layer;
    } else {
      layer.add_backward(node);
    }
  }
  layers.erase(last);
  if (most > 0) std::erase_if(layers, [&](const auto& layer) { return layer.first >= most; });

  std::vector<Node> nodes;
  std::set<std::int32_t> begun;
  for (Node& node : program.nodes) {
    const auto layer = node.phase == Phase::backward ? layers.find(node.place.layer) : layers.end();
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
