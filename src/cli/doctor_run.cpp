// Columns to means, events to facts.
#include "cli/doctor_run.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "perf/cards.h"
#include "report/run_summary.h"

namespace redline::cli {
namespace {

// Of machines that no datasheet is known for, bytes that a copy moves for each FLOP of the peak: two cores of a
// Neoverse-V1 alone (117 GFLOP/s), and an H200.
constexpr double kCpuBytesPerFlop = 0.4, kCardBytesPerFlop = 4.30 / 989.5;

// The mean of the known values; 0 where there are none.
double mean(const std::vector<std::size_t>& rows, const std::vector<double>& values) {
  double sum = 0, n = 0;
  for (const std::size_t i : rows) {
    if (std::isnan(values[i])) continue;
    sum += values[i];
    n += 1;
  }
  return n > 0 ? sum / n : 0;
}

double known_or(double value, double other) { return std::isnan(value) ? other : value; }

std::int64_t count_known(const std::vector<double>& values) {
  return std::ranges::count_if(values, [](double v) { return !std::isnan(v); });
}

// Takes the events of the last session.
void take_events(perf::Observed& seen, const report::RunRecord& run) {
  for (auto e = run.events.rbegin(); e != run.events.rend() && e->kind != "started"; ++e) {
    const bool attention = e->text.starts_with("attention ") && e->text.find(": reference") != e->text.npos;
    seen.reference_attention = seen.reference_attention || (e->kind == "note" && attention);
    seen.graphs_fell_back = seen.graphs_fell_back || e->text.find(troubleshooting::kGraphs) != e->text.npos;
    seen.batch_was_chosen = seen.batch_was_chosen || e->text.starts_with("train.batch_size = auto");
  }
}

// A step's share of what happens every so many of them: what one takes, whenever it was.
void take_asides(perf::Observed& seen, const report::RunRecord& run, const config::Config& config) {
  const train::Account account = run.goodput.account();
  const auto share = [](double seconds, std::int64_t times, std::int64_t every) {
    return times > 0 && every > 0 ? 1e3 * seconds / static_cast<double>(times) / static_cast<double>(every) : 0;
  };
  seen.evaluation_ms =
      share(account.of(train::Part::evaluation), count_known(run.column("eval_loss")), config.train.eval_every);
  std::set<std::int64_t> sampled;
  for (const report::Sample& s : run.samples) sampled.insert(s.step);
  seen.sampling_ms =
      share(account.of(train::Part::sampling), static_cast<std::int64_t>(sampled.size()), config.train.sample_every);
  double held = 0, until_whole = 0;
  std::int64_t saves = 0;
  for (const report::Event& e : run.events) {
    if (e.kind != "checkpoint") continue;
    held += e.held;
    until_whole += e.seconds;
    ++saves;
  }
  seen.saving_ms = share(held, saves, config.checkpoint.every);
  if (saves > 0) seen.save_seconds = until_whole / static_cast<double>(saves);
}

void take_card(perf::Observed& seen, const report::RunRecord& run, const std::vector<std::size_t>& rows) {
  if (run.throttled_rows == 0) return;
  for (const std::string& reason : run.throttle_reasons)
    if (seen.throttle.empty() || seen.throttle == device::kPowerCap) seen.throttle = reason;
  if (const double mhz = mean(rows, run.column("gpu_clock_mhz")); mhz > 0) seen.clock_mhz = mhz;
  if (const double most = report::quantile(run.column("gpu_max_clock_mhz"), 1); most > 0) seen.max_clock_mhz = most;
}

std::optional<perf::StepParts> timed_parts(const report::RunRecord& run) {
  if (!run.profile || !run.profile->contains("nodes") || !(*run.profile)["nodes"].is_array()) return {};
  perf::StepParts parts;
  for (const io::Json& node : (*run.profile)["nodes"]) {
    if (!node.is_object()) continue;
    const std::string op = node.value("op", ""), phase = node.value("phase", "");
    const double ms = node.value("ms", 0.0);
    perf::add_timed(parts, {op, phase, ms, ms * node.value("roofline", 0.0)});
  }
  return parts.ms() > 0 ? std::optional(parts) : std::nullopt;
}

}  // namespace

perf::Observed observed_in(const report::RunRecord& run, const config::Config& config) {
  const report::RunSummary summary = report::summarise(run, {});
  const std::vector<std::size_t> rows = report::steady_rows(run);
  const auto of = [&](report::Column column) { return mean(rows, run.column(column)); };
  perf::Observed seen;
  seen.measured = true;
  seen.step_ms = of("step_ms");
  if (!(seen.step_ms > 0))
    fail_user("{}: no step of it was recorded; doctor needs the metrics.jsonl of a run that has made some",
              run.folder.string());
  seen.data_wait_ms = of("data_wait_ms");
  const bool has_device = count_known(run.column("device_ms")) > 0;
  seen.device_ms = has_device ? of("device_ms") : seen.step_ms - seen.data_wait_ms;
  seen.idle_ms = has_device ? of("idle_ms") : seen.data_wait_ms;
  seen.tokens = of("tokens");
  seen.padding = of("padding");
  seen.mfu = known_or(summary.figure("mean_mfu"), 0);
  if (count_known(run.column("slowest_rank_ms")) > 0) {
    seen.ranks_wait_ms = of("ranks_wait_ms");
    seen.slowest_rank_ms = of("slowest_rank_ms");
    seen.median_rank_ms = of("median_rank_ms");
    seen.slowest_rank = static_cast<std::int64_t>(report::quantile(run.column("slowest_rank"), 0.5));
  }
  take_asides(seen, run, config);
  take_card(seen, run, rows);
  take_events(seen, run);
  if (run.pipeline) seen.slowest_stage = run.pipeline->value("slowest", "");
  if (seen.slowest_stage == "train") seen.slowest_stage.clear();  // as one wants it
  seen.timed = timed_parts(run);
  return seen;
}

perf::Machine machine_of(const report::RunRecord& run) {
  if (run.sessions.empty() || !(run.sessions.back().peak_flops > 0))
    fail_user("{}: its events.jsonl does not say on what it ran; --card NAME says it", run.folder.string());
  const report::SessionStart& s = run.sessions.back();
  perf::Machine m;
  if (const perf::Card* card = s.card ? perf::find_card(s.device) : nullptr) {
    m = perf::machine_of(*card);
  } else {
    m.kind = s.card ? device::Kind::cuda : device::Kind::cpu;
    m.source = "as the run measured it";
    m.peak_flops = s.peak_flops;
    m.tflops.bf16 = m.tflops.fp16 = m.tflops.fp32 = 1e-12 * s.peak_flops;
    if (s.card) m.tflops.tf32 = m.tflops.bf16 / 2;
    if (s.card) m.tflops.fp32 = m.tflops.bf16 / 16;
    m.copy_rate = s.peak_flops * (s.card ? kCardBytesPerFlop : kCpuBytesPerFlop);
  }
  m.name = s.device;
  if (s.device_memory > 0) m.memory = static_cast<std::int64_t>(s.device_memory);
  return m;
}

}  // namespace redline::cli
