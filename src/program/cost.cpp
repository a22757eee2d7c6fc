// Costs of nodes, from the ops' own headers where they know better than the sum of their operands.
#include "program/cost.h"

namespace redline::program {

Cost cost_of(const Op& op, const std::vector<Value>& values) {
  double bytes = 0;
  auto shape_only = [&](std::string_view, ValueId id, Access access) {
    if (!id.present()) return Tensor{};
    const Value& v = values[static_cast<std::size_t>(id.index)];
    if (v.role != Role::scratch) bytes += static_cast<double>(v.bytes()) * (access == Access::update ? 2 : 1);
    return Tensor{nullptr, v.dtype, v.shape};
  };
  return std::visit(
      [&](const auto& o) {
        const auto shaped = o.map(shape_only);
        if constexpr (requires { cost(shaped); }) return cost(shaped);
        Cost c{.bytes = bytes};
        if constexpr (requires { shaped.flops(); }) c.flops = shaped.flops();
        if constexpr (requires { flops_per_pair(shaped); }) c.flops_per_pair = flops_per_pair(shaped);
        return c;
      },
      op);
}

ModelFlops model_flops(const Program& program) {
  ModelFlops f;
  for (const Node& node : program.nodes) {
    if (node.phase == Phase::recompute || node.phase == Phase::update) continue;
    f.per_slot_products += node.cost.flops;
    f.per_pair += node.cost.flops_per_pair;
  }
  return f;
}

}  // namespace redline::program
