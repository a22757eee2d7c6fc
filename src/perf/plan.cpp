// Lowers a configuration as its device would, and reads memory, FLOPs and time off the programs.
#include "perf/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "config/load.h"
#include "device/device.h"
#include "model/fp8_linears.h"
#include "model/lowering.h"
#include "model/state_files.h"
#include "program/planner.h"
#include "program/program.h"

namespace redline::perf {
namespace {

using program::Role;

constexpr std::size_t kLargestShown = 6;

// Of a real token.
FlopParts flops_of(const program::ProgramSet& set, const model::LoweringOptions& options, const Filling& filling) {
  const data::BatchShape& shape = options.batch;
  const double sequence = options.sharing.sequence, t = static_cast<double>(shape.seq_len);
  const double tokens = static_cast<double>(shape.tokens()) / sequence;  // of a rank, which has as many heads fewer
  const auto [documents, length] = documents_of(shape.rows, shape.seq_len, filling);
  FlopParts parts;
  for (const program::Node& node : set.find(model::kFirst).nodes) {
    if (node.phase == program::Phase::recompute) continue;
    const double seen = node.cost.window == kNoWindow ? t : std::min(t, static_cast<double>(node.cost.window));
    parts.scores +=
        node.cost.flops_per_pair * documents * kept_pairs(length, node.cost.window) / (filling.utilisation * tokens);
    parts.scores_palm += sequence * node.cost.flops_per_pair * seen;
    const program::Part part = node.place.part;
    (part == program::Part::head  ? parts.head
     : part == program::Part::mlp ? parts.mlp
                                  : parts.projections) += node.cost.flops / tokens;
  }
  return parts;
}

// Memory that NCCL takes of a card for its channels. It depends on the links and is not known before a run, so this is
// a guess, rather too large.
constexpr std::int64_t kLibraryBytes = std::int64_t{768} << 20;

// Transient values at the peak that collectives fill or send, by role.
std::int64_t travelling(const program::ProgramSet& set, Role role) {
  std::set<program::ValueId> sent;
  for (const program::Node& node : set.programs[set.memory.device.peak->program].nodes)
    if (program::is_collective(node.op) && !std::holds_alternative<dist::AllToAll<program::ValueId>>(node.op))
      program::each_operand(node.op,
                            [&](std::string_view, program::ValueId id, Access) { sent.insert(set.owner(id)); });
  std::int64_t bytes = 0;
  for (const program::ValueId id : program::alive_at_peak(set))
    if (set.at(id).role == role && sent.contains(id)) bytes += aligned(set.at(id).bytes());
  return bytes;
}

MemoryKinds memory_of(const program::ProgramSet& set, const Machine& machine, int ranks) {
  const program::ArenaPlan& plan = set.memory.device;
  const auto role = [&](Role r) { return plan.by_role[static_cast<int>(r)]; };
  MemoryKinds m;
  m.arena = plan.total;
  m.masters = role(Role::parameter);
  m.working_copies = role(Role::working);
  m.gradients = role(Role::gradient);
  m.moments = role(Role::moment);
  m.averages = role(Role::average);
  m.inputs = role(Role::scale) + role(Role::record) + role(Role::constant) + role(Role::cache) + role(Role::input) +
             role(Role::output);
  if (ranks > 1 && plan.peak) {
    m.gathered = travelling(set, Role::activation);
    m.communication = travelling(set, Role::scratch);
  }
  m.workspace = role(Role::scratch) - m.communication;
  m.activations = plan.total - plan.persistent - role(Role::scratch) - m.gathered;
  if (machine.kind == device::Kind::cuda && ranks > 1) m.communication += kLibraryBytes;
  m.context = machine.in_context;
  return m;
}

// The programs of the rank that needs most of the device, and the most that any needs of the host. Where state lies
// there, only lowering for all of them tells; else the two of the walk are enough.
struct Fullest {
  std::shared_ptr<const model::LoweredModel> lowered;
  std::int64_t host = 0;
};
Fullest fullest_of(const config::Config& config, const StepWalk& step) {
  Fullest f{step.lowered(), 0};
  const auto look = [&](std::shared_ptr<const model::LoweredModel> rank) {
    f.host = std::max(f.host, rank->set.memory.host.beyond_results());
    if (rank->set.memory.device.total > f.lowered->set.memory.device.total) f.lowered = std::move(rank);
  };
  look(step.lowered());
  look(step.of_slowest());
  model::LoweringOptions options = step.options();
  if (options.sharing.alone() || !options.placement.state_on_host()) return f;
  for (const int rank : model::fullest_ranks(config.model, options)) {
    options.sharing.rank = rank;
    if (rank != step.options().sharing.rank)
      look(std::make_shared<model::LoweredModel>(model::lower(config.model, options)));
  }
  return f;
}

std::vector<NamedBytes> largest_of(const program::ProgramSet& set) {
  std::map<std::string, NamedBytes> by_name;
  for (const program::ValueId id : program::alive_at_peak(set)) {
    const program::Value& v = set.at(id);
    if (v.role != Role::activation) continue;
    NamedBytes& sum = by_name[v.name];
    sum.name = v.name;
    sum.count += 1;
    sum.bytes += v.bytes();
  }
  std::vector<NamedBytes> all;
  for (auto& [name, sum] : by_name) all.push_back(std::move(sum));
  std::ranges::stable_sort(all, [](const NamedBytes& a, const NamedBytes& b) { return a.bytes > b.bytes; });
  all.resize(std::min(all.size(), kLargestShown));
  return all;
}

}  // namespace

Setting setting_of(const config::Config& c) { return {c.train.batch_size, c.train.accumulate, c.train.recompute}; }

std::string in_words(const Setting& s, std::string_view before_recompute) {
  return fmt::format("{} x {}{}", counted(s.batch_size, "row"), s.accumulate,
                     s.recompute == "none" ? "" : fmt::format("{}recompute {}", before_recompute, s.recompute));
}

config::Config with_setting(const config::Config& config, const Setting& setting) {
  config::Config c = config;
  c.train.batch_size = setting.batch_size;
  c.train.automatic_batch_size = false;
  c.train.accumulate = setting.accumulate;
  if (c.train.accumulate_from > 0)  // the same share of the micro-batches, as nearly as can be
    c.train.accumulate_from =
        std::max<std::int64_t>(1, (2 * config.train.accumulate_from * setting.accumulate + config.train.accumulate) /
                                      (2 * config.train.accumulate));
  c.train.recompute = setting.recompute;
  const std::int64_t before = setting_of(config).rows();
  if (setting.rows() == before) return c;
  const double factor = std::sqrt(static_cast<double>(setting.rows()) / static_cast<double>(before));
  c.optim.lr *= factor;
  c.optim.min_lr *= factor;
  return c;
}

config::Config as_possible(const config::Config& config, const Machine& machine) {
  config::Config c = config;
  const bool lacks_fp8 = machine.kind == device::Kind::cuda && machine.tflops.fp8 == 0;
  if (!lacks_fp8 || c.precision.matmul != "fp8") return c;
  c.precision.fp8_products = {std::string(model::kNoFp8Products)};
  c.precision.head = "bf16";
  return c;
}

Plan make_plan(const config::Config& asked, const Machine& machine, const Spread& spread, const Filling& filling) {
  const config::Config config = as_possible(asked, machine);
  const StepWalk step(config, machine, spread, filling);
  const Fullest fullest = fullest_of(config, step);
  const model::LoweredModel& lowered = *fullest.lowered;
  const data::BatchShape& batch = step.options().batch;
  Plan p;
  p.setting = setting_of(config);
  p.mode = spread.mode;
  p.ranks = spread.ranks;
  if (spread.mode != Mode::ddp) p.shards = step.options().sharing.shards;
  p.parameters = model::parameter_count(lowered.table);
  p.active_parameters = model::active_count(lowered.table);
  p.tokens_per_step = batch.tokens() * config.train.accumulate / step.options().sharing.sequence;
  p.flops = flops_of(lowered.set, step.options(), {});
  p.memory = memory_of(lowered.set, machine, spread.ranks);
  p.memory.host_arena = fullest.host;
  p.checkpoint = model::state_bytes(lowered.state);
  p.snapshot = model::snapshot_bytes(lowered, program::Memory::host).all();
  const std::int64_t left = std::min(machine.memory - p.memory.total() - model::kSpareForSnapshot,
                                     config::bytes_of_amount(config.memory.limit) - p.memory.arena);
  const model::SnapshotBytes room{machine.kind == device::Kind::cuda ? left : 0, p.snapshot};
  p.snapshot_on_device = model::snapshot_memories(lowered, room).front() == program::Memory::device;
  p.snapshot_on_host = p.snapshot_on_device ? model::snapshot_bytes(lowered, program::Memory::device).host : p.snapshot;
  p.fits = p.memory.total() <= machine.memory && p.memory.arena <= config::bytes_of_amount(config.memory.limit);
  p.largest = largest_of(lowered.set);
  if (const auto& peak = lowered.set.memory.device.peak) p.peak_node = lowered.set.node(*peak).full_name();
  p.times = step.times();
  const FlopParts flops = flops_of(lowered.set, step.options(), filling);
  Expected& e = p.expected;
  e.step_seconds = p.times.total();
  e.tokens_per_s = filling.utilisation * static_cast<double>(p.tokens_per_step) * spread.ranks / e.step_seconds;
  e.mfu = e.tokens_per_s * flops.total() / (spread.ranks * machine.peak_flops);
  e.mfu_palm = e.tokens_per_s * flops.palm() / (spread.ranks * machine.peak_flops);
  return p;
}

namespace {

// Seconds in which the host launches one node; a card that is done sooner waits for it. The preset quick with 32
// rows is 1.11 times as fast with graphs on an H200 (docs/performance.md).
constexpr double kLaunchSeconds = 5.8e-6;

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, op) != names.end();
}

}  // namespace

StepPart part_of(std::string_view op) {
  if (is_one_of(op, {"linear", "linear_input_grad", "linear_weight_grad", "fp8_product", "grouped_linear",
                     "grouped_linear_input_grad", "grouped_linear_weight_grad", "grouped_fp8_product",
                     "grouped_fp8_weight_grad"}))
    return StepPart::products;
  if (is_one_of(op, {"attention", "attention_grad", "document_tiles"})) return StepPart::attention;
  if (op == "lm_loss") return StepPart::head;
  if (is_one_of(op, {"all_reduce", "reduce_shards", "gather_shards", "all_to_all"})) return StepPart::communication;
  if (is_one_of(op, {"sum_squares", "grad_norm", "adamw", "round_at_random", "widen", "refresh", "average", "exchange",
                     "tensor_sums", "orthogonalize", "muon_momentum", "muon", "bound_scale", "move_scales", "largest",
                     "set_scales"}))
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

PlannedStep planned_step(const config::Config& asked, const Machine& machine, const Filling& filling) {
  const config::Config config = as_possible(asked, machine);
  const model::LoweringOptions options = model::lowering_options(config, machine.kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  const auto [documents, length] = documents_of(options.batch.rows, options.batch.seq_len, filling);
  const double gap = 1e3 * seconds_between_nodes(machine.kind);
  PlannedStep step;
  const auto add = [&, documents = documents, length = length](std::string_view name, double times) {
    const program::Program& program = lowered.set.find(name);
    const std::vector<double> seconds = node_seconds(lowered.set, program, documents, length, machine);
    for (const ClockSpan& span : walk(program, seconds, machine.both_ways).spans) {
      if (span.clock != Clock::compute) continue;
      if (span.waits) {
        step.parts[StepPart::copies].ms += times * 1e3 * span.seconds();
        continue;
      }
      const program::Node& node = *span.node;
      const std::string_view op = program::name_of(node.op);
      const double ms = std::max(0.0, 1e3 * span.seconds() - gap);
      const double peak =
          op == "fp8_product" && machine.tflops.fp8 > 0 ? 1e12 * machine.tflops.fp8 : machine.peak_flops;
      const double pairs = documents * kept_pairs(length, node.cost.window);
      const double floor = 1e3 * std::max((node.cost.flops + node.cost.flops_per_pair * pairs) / peak,
                                          node.cost.bytes / machine.copy_rate);
      add_timed(step.parts, {op, name_of(node.phase), times * ms, times * floor});
      step.parts[StepPart::launches].ms += times * gap;
      if (node.place.part == program::Part::mlp && part_of(op) == StepPart::products) step.mlp_ms += times * ms;
      if (machine.kind == device::Kind::cuda) step.node_by_node_ms += times * std::max(0.0, 1e3 * kLaunchSeconds - ms);
    }
  };
  for (const model::StepProgram& run : model::programs_of_step(options, config.train.accumulate))
    add(run.name, static_cast<double>(run.times));
  // Held-out documents are packed, whatever data.packing says.
  const Documents full = documents_of(options.batch.rows, options.batch.seq_len, {});
  step.evaluation_ms = 1e3 * expected_seconds(lowered.set, model::kEvaluate, full.count, full.length, machine);
  return step;
}

}  // namespace redline::perf
