// Runs candidates one after the other; each frees its memory before the next.
#include "perf/auto_batch.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "device/card_overhead.h"
#include "perf/choose.h"
#include "perf/fp8_choice.h"
#include "perf/steps.h"

namespace redline::perf {
namespace {

constexpr std::size_t kCandidates = 3;
constexpr double kHopeless = 0.8;  // of the best one's expected rate: a plan is not that wrong (docs/results.md)
constexpr std::int64_t kTimedMicroBatches = 3;
constexpr int kRounds = 3;

// Time of a step, from steps of one micro-batch and of a few: all micro-batches but the first take the same time.
double seconds_of_a_step(const config::Config& config, device::Device& device, const StopFlag* stop) {
  const std::int64_t all = config.train.accumulate, few = std::min(all, kTimedMicroBatches);
  Steps steps(config, device, stop);
  std::int64_t index = 0;
  const auto run = [&](std::int64_t micro_batches) {
    const StepTimes t = steps.step(index++, micro_batches);
    return t.seconds - t.waited;
  };
  run(few);                           // products are tuned, attention is chosen
  if (device.runs_ahead()) run(few);  // graphs are replayed from here on
  double one = std::numeric_limits<double>::infinity(), several = one;
  for (int round = 0; round < kRounds; ++round) {
    one = std::min(one, run(1));
    if (few > 1) several = std::min(several, run(few));
  }
  if (few == 1) return one;
  return one + static_cast<double>(all - 1) * std::max(0.0, several - one) / static_cast<double>(few - 1);
}

// Takes fp8 for every product that the card can compute. Once the batch is known, the products that are worth it are
// found.
config::Config as_measured(const config::Config& config, device::Device& device) {
  if (config.precision.matmul != "fp8" || device.kind() == device::Kind::cpu) return config;
  return take_possible(config, model::fp8_products(config).taken, time_on_card(device)).config;
}

}  // namespace

Machine machine_now(device::Device& device) {
  Machine m = machine_of(device);
  m.memory = device.available_bytes();
  if (m.kind == device::Kind::cuda) m.memory += m.in_context + device::kUploadSegments * device::kUploadSegmentBytes;
  return m;
}

AutoBatch find_batch_size(const config::Config& config, device::Device& device, const AutoBatchOptions& options) {
  const Machine machine = machine_now(device);
  const Choice choice = choose(config, machine);
  if (choice.best.empty()) fail_user("train.batch_size = \"auto\": {}", why(choice, machine));

  AutoBatch result;
  result.rows_before = setting_of(config).rows();
  for (const Plan& p : choice.best) {
    if (result.tried.size() == kCandidates) break;
    if (p.expected.tokens_per_s < kHopeless * choice.best[0].expected.tokens_per_s) break;
    result.tried.push_back({p.setting, p.expected.tokens_per_s, std::nullopt, ""});
  }
  const std::size_t candidates = result.tried.size();
  const config::Config measured = options.measure ? as_measured(config, device) : config;
  for (std::size_t i = 0; options.measure && candidates > 1 && i < candidates; ++i) {
    Tried& t = result.tried[i];
    const config::Config c = with_setting(measured, t.setting);
    try {
      end_if_asked(options.stop);
      if (options.progress) options.progress(t.setting, i + 1, candidates);
      t.measured = static_cast<double>(t.setting.rows() * c.train.seq_len) / seconds_of_a_step(c, device, options.stop);
    } catch (const Interrupted&) {
      break;
    } catch (const MachineError& e) {  // it did not fit after all; the next one is smaller or computes more again
      t.problem = e.what();
    }
  }
  if (std::ranges::all_of(result.tried, [](const Tried& t) { return !t.problem.empty(); }))
    throw MachineError(result.tried[0].problem);
  std::ranges::stable_sort(result.tried, [](const Tried& a, const Tried& b) {
    if (a.problem.empty() != b.problem.empty()) return a.problem.empty();
    return a.measured.value_or(0) > b.measured.value_or(0);
  });
  result.config = with_setting(config, result.tried[0].setting);
  return result;
}

config::Config adopt_batch_size(const config::Config& config, const config::Config& run) {
  Setting s = setting_of(run);
  if (!config.origins.prefix({"train.recompute"}).empty()) s.recompute = config.train.recompute;
  return with_setting(config, s);
}

}  // namespace redline::perf
