// Sums over nodes.
#include "perf/step_parts.h"

#include <algorithm>

#include "model/lowering.h"
#include "perf/plan.h"

namespace redline::perf {
namespace {

// Seconds in which the host launches one node; a card that is done sooner waits for it. The preset quick with 32
// rows is 1.11 times as fast with graphs on an H200 (docs/performance.md).
constexpr double kLaunchSeconds = 5.8e-6;

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, op) != names.end();
}

}  // namespace

StepPart part_of(std::string_view op) {
  if (is_one_of(op, {"linear", "linear_input_grad", "linear_weight_grad", "fp8_product"})) return StepPart::products;
  if (is_one_of(op, {"attention", "attention_grad", "document_tiles"})) return StepPart::attention;
  if (op == "lm_loss") return StepPart::head;
  if (is_one_of(op, {"all_reduce", "reduce_shards", "gather_shards"})) return StepPart::communication;
  if (is_one_of(op, {"sum_squares", "grad_norm", "adamw", "refresh", "average", "exchange", "tensor_sums",
                     "orthogonalize", "muon_momentum", "muon", "bound_scale", "move_scales"}))
    return StepPart::update;
  return StepPart::memory_bound;
}

double StepParts::ms() const {
  double sum = 0;
  for (const PartTime& part : of) sum += part.ms;
  return sum;
}

void add_timed(StepParts& parts, const TimedNode& node) {
  PartTime& part = parts[part_of(node.op)];
  part.ms += node.ms;
  if (node.phase != name_of(program::Phase::recompute)) part.floor_ms += std::min(node.floor_ms, node.ms);
}

StepParts parts_of(const Profile& profile) {
  StepParts parts;
  for (const TimedWork& node : profile.nodes) add_timed(parts, {node.op, node.phase, node.ms, node.floor_ms});
  return parts;
}

PlannedStep planned_step(const config::Config& asked, const Machine& machine) {
  const config::Config config = as_possible(asked, machine);
  const model::LoweringOptions options = model::lowering_options(config, machine.kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  const auto rows = static_cast<double>(options.batch.rows), seq_len = static_cast<double>(options.batch.seq_len);
  const double pairs = rows * seq_len * (seq_len + 1) / 2, gap = 1e3 * seconds_between_nodes(machine.kind);
  PlannedStep step;
  const auto add = [&](std::string_view name, double times) {
    const program::Program& program = lowered.set.find(name);
    const std::vector<double> seconds = node_seconds(lowered.set, program, rows, seq_len, machine);
    for (std::size_t i = 0; i < program.nodes.size(); ++i) {
      const program::Node& node = program.nodes[i];
      const std::string_view op = program::name_of(node.op);
      const double ms = std::max(0.0, 1e3 * seconds[i] - gap);
      const double peak =
          op == "fp8_product" && machine.tflops.fp8 > 0 ? 1e12 * machine.tflops.fp8 : machine.peak_flops;
      const double floor = 1e3 * std::max((node.cost.flops + node.cost.flops_per_pair * pairs) / peak,
                                          node.cost.bytes / machine.copy_rate);
      add_timed(step.parts, {op, name_of(node.phase), times * ms, times * floor});
      step.parts[StepPart::launches].ms += times * gap;
      if (node.phase == program::Phase::recompute) step.recompute_ms += times * (ms + gap);
      if (node.place.part == program::Part::mlp && part_of(op) == StepPart::products) step.mlp_ms += times * ms;
      if (machine.kind == device::Kind::cuda) step.node_by_node_ms += times * std::max(0.0, 1e3 * kLaunchSeconds - ms);
    }
  };
  add(model::kFirst, 1);
  if (config.train.accumulate > 1) add(model::kAccumulate, static_cast<double>(config.train.accumulate - 1));
  add(model::kUpdate, 1);
  step.evaluation_ms = 1e3 * expected_seconds(lowered.set, model::kEvaluate, rows, seq_len, machine);
  return step;
}

}  // namespace redline::perf
