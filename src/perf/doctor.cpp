// Divides a step into its parts and puts what was found in order.
#include "perf/doctor.h"

#include <algorithm>

#include "model/lowering.h"

namespace redline::perf {
namespace {

// The rate at which a local disk takes a checkpoint (bench/results/h200_saves.json: 1.1 to 1.8 GB/s).
constexpr double kDiskBytesPerSecond = 1e9;

// The reference kernel reaches 1 / 340 of the peak: gqa-180m with 16 rows in tf32 took 587 ms with it and 106 ms
// without on an H200 (docs/experiments.md), 1.39 TFLOP of attention.
constexpr double kReferenceFloors = 340;

constexpr std::int64_t kAligned = 8, kTile = 128;  // elements of a load of 16 bytes, and of a product's tile

bool on_card(const Machine& m) { return m.kind == device::Kind::cuda; }

// Extra time of products with rows of n elements, as a share. Loads are as wide as all rows are aligned: cs336-350m
// with 32 rows lost 51 ms with an ffn of 2,732, 107 ms with 2,730 and 150 ms with 2,731 to its MLPs, which the plan
// gives 59 ms, on an H200 (docs/performance.md). A tile that is not full takes as long as a full one.
double odd_extent_share(std::int64_t n) {
  if (n % kAligned != 0) return n % 4 == 0 ? 0.86 : n % 2 == 0 ? 1.81 : 2.53;
  return static_cast<double>((n + kTile - 1) / kTile * kTile) / static_cast<double>(n) - 1;
}

bool has_fast_head_dim(const config::Config& c) { return c.model.head_dim == 64 || c.model.head_dim == 128; }

double attention_estimate(const config::Config& c, const PlannedStep& planned, bool reference_seen) {
  const PartTime& attention = planned.parts[StepPart::attention];
  const std::int64_t d = c.model.head_dim;
  const bool nobody_can = !has_fast_head_dim(c) && (d % kAligned != 0 || d > 128);
  if (reference_seen || nobody_can || c.kernels.attention == "reference")
    return std::max(0.0, kReferenceFloors * attention.floor_ms - attention.ms);
  if (has_fast_head_dim(c)) return 0;
  return attention.ms * (static_cast<double>(d <= 64 ? 64 : 128) / static_cast<double>(d) - 1);
}

double launches_estimate(const config::Config& c, const PlannedStep& planned, bool fell_back) {
  return fell_back || c.kernels.graphs == "off" ? planned.node_by_node_ms : 0;
}

}  // namespace

double Patient::excess_ms() const { return std::max(0.0, device_ms - planned.parts.ms()); }

double Patient::slow_attention_ms() const {
  if (!on_card(machine)) return 0;
  return std::min(excess_ms(), attention_estimate(config, planned, seen.reference_attention));
}
double Patient::slow_mlp_ms() const {
  if (!on_card(machine)) return 0;
  return std::min(excess_ms(), planned.mlp_ms * odd_extent_share(config.model.ffn));
}
double Patient::slow_launches_ms() const {
  if (!on_card(machine)) return 0;
  return std::min(excess_ms(), launches_estimate(config, planned, seen.graphs_fell_back));
}

double Patient::slow_kernels_ms() const {
  return std::min(excess_ms(), slow_attention_ms() + slow_mlp_ms() + slow_launches_ms());
}

Observed expected_step(const config::Config& config, const Machine& machine) {
  const Plan plan = make_plan(config, machine);
  const PlannedStep planned = planned_step(config, machine);
  const double planned_ms = planned.parts.ms();
  Observed seen;
  seen.device_ms = planned_ms;
  if (on_card(machine))
    seen.device_ms += attention_estimate(config, planned, false) + launches_estimate(config, planned, false) +
                      planned.mlp_ms * odd_extent_share(config.model.ffn);
  seen.step_ms = seen.device_ms;
  seen.tokens = static_cast<double>(plan.tokens_per_step);
  seen.mfu = plan.expected.mfu * planned_ms / seen.step_ms;
  if (config.train.eval_every > 0)
    seen.evaluation_ms = planned.evaluation_ms * static_cast<double>(config.train.eval_batches) /
                         static_cast<double>(config.train.eval_every);
  seen.save_seconds = static_cast<double>(plan.checkpoint) / kDiskBytesPerSecond;
  if (config.checkpoint.every > 0) {  // beside the steps, as long as there are enough of them
    const auto every = static_cast<double>(config.checkpoint.every);
    seen.saving_ms = std::max(0.0, 1e3 * seen.save_seconds / every - seen.step_ms);
  }
  return seen;
}

Patient examine(const config::Config& config, const Machine& machine, const Observed& seen) {
  Patient p{config, machine, seen, planned_step(config, machine)};
  p.device_ms = std::max(0.0, seen.device_ms - seen.ranks_wait_ms);
  p.whole_ms = seen.step_ms + seen.evaluation_ms + seen.sampling_ms + seen.saving_ms;
  p.data_ms = std::min(seen.data_wait_ms, seen.idle_ms);
  return p;
}

namespace {

StepParts divide(const Patient& p) {
  StepParts parts = p.seen.timed ? *p.seen.timed : p.planned.parts;
  if (!p.seen.timed) {
    parts[StepPart::attention].ms += p.slow_attention_ms();
    parts[StepPart::products].ms += p.slow_mlp_ms();
    parts[StepPart::launches].ms += p.slow_launches_ms();
  }
  parts[StepPart::communication].ms = 0;  // the part of it that computing hides costs nothing
  const double scale = parts.ms() > 0 ? p.device_ms / parts.ms() : 0;
  for (PartTime& part : parts.of) part.ms *= scale;
  for (const StepPart of_tokens : {StepPart::products, StepPart::attention, StepPart::memory_bound, StepPart::head})
    parts[of_tokens].floor_ms *= 1 - p.seen.padding;
  for (PartTime& part : parts.of) part.floor_ms = std::min(part.floor_ms, part.ms);
  parts[StepPart::communication] = {p.seen.ranks_wait_ms, 0};
  parts[StepPart::launches].ms += std::max(0.0, p.seen.idle_ms - p.data_ms);
  parts[StepPart::data].ms = p.data_ms;
  parts[StepPart::evaluation].ms = p.seen.evaluation_ms;
  parts[StepPart::sampling].ms = p.seen.sampling_ms;
  parts[StepPart::saving].ms = p.seen.saving_ms;
  return parts;
}

}  // namespace

void Diagnosis::set_refuted_aside() {
  for (std::vector<Finding>* from : {&findings, &options}) {
    const auto help = [](const Finding& f) { return !f.refuted(); };
    const auto rest = std::ranges::stable_partition(*from, help);
    refuted.insert(refuted.end(), rest.begin(), rest.end());
    from->erase(rest.begin(), rest.end());
  }
}

Diagnosis diagnose(const config::Config& config, const Machine& machine, const Observed& seen) {
  const Patient p = examine(config, machine, seen);
  Diagnosis d;
  d.parts = divide(p);
  d.step_ms = p.whole_ms;
  d.tokens_per_s = 1e3 * seen.tokens / d.step_ms;
  d.mfu = seen.mfu * seen.step_ms / d.step_ms;
  double explained = p.slow_kernels_ms();
  for (Finding& f : find_illnesses(p)) {
    if (f.illness == train::Illness::throttled) explained += f.loss_ms;
    f.loss_ms = std::min(f.loss_ms, 0.99 * d.step_ms);
    if (f.loss_ms < kWorthMending * d.step_ms) continue;
    f.gain = d.step_ms / (d.step_ms - f.loss_ms);
    f.mfu_points = d.mfu_points(f.loss_ms);
    if (f.mend.empty()) f.mend = f.row().mend;
    (f.row().optional ? d.options : d.findings).push_back(std::move(f));
  }
  if (seen.measured) d.of_plan = std::max(0.0, p.device_ms - explained) / p.planned.parts.ms();
  const auto dearer = [](const Finding& a, const Finding& b) { return a.loss_ms > b.loss_ms; };
  std::ranges::stable_sort(d.findings, dearer);
  std::ranges::stable_sort(d.options, dearer);
  return d;
}

}  // namespace redline::perf
