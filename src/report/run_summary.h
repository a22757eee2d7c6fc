// RunSummary has the few figures that a run is judged by, for the page and for --json.
#pragma once

#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "report/run_record.h"

namespace redline::report {

struct Extrapolation {
  double tokens = 0, seconds = 0;
};

// How a column becomes one figure. mean_over_time weighs rows by step_ms; share_of_step divides the mean by that of
// step_ms.
enum class Statistic { mean_over_time, mean, largest, median, p95, share_of_step };

struct SummaryFigure {
  std::string_view key;  // of --json
  Column column;
  Statistic statistic;
  std::string_view title = {};  // of its tile; none: no tile
  Figure figure = Figure::number;
  bool gpu = false;  // stands under "gpu" in --json
};

// The figures that come from one column each, in the order of the page.
inline constexpr auto kSummary = [] {
  using enum Statistic;
  using enum Figure;
  return std::to_array<SummaryFigure>({
      {"mean_mfu", "mfu", mean_over_time, "MFU, mean", share},
      {"peak_mfu", "mfu", largest, "MFU, peak", share},
      {"mean_mfu_palm", "mfu_palm", mean_over_time, "MFU, PaLM count", share},
      {"mean_tflops", "tflops", mean_over_time, "FLOP/s, mean", teraflops},
      {"mean_tokens_per_s", "tokens_per_s", mean_over_time, "tokens/s, mean", rate},
      {"peak_tokens_per_s", "tokens_per_s", largest, "tokens/s, peak", rate},
      {"median_step_ms", "step_ms", median, "step time, median", milliseconds},
      {"p95_step_ms", "step_ms", p95, "step time, 95%", milliseconds},
      {"longest_step_ms", "step_ms", largest},
      {"data_wait", "data_wait_ms", share_of_step, "waiting for data", share},
      {"padding", "padding", mean, "padding", share},
      {"memory_gib", "memory_gib", largest, "memory", gibibytes},
      {"gpu_memory", "gpu_memory", largest, "GPU memory taken", share},
      {"mean_utilisation", "gpu_utilisation", mean_over_time, "", number, true},
      {"highest_temperature_c", "gpu_temperature_c", largest, "", number, true},
      {"mean_power_w", "gpu_power_w", mean_over_time, "", number, true},
      {"mean_clock_mhz", "gpu_clock_mhz", mean_over_time, "", number, true},
  });
}();

// The index of a figure, by its key. An unknown key does not compile.
using SummaryKey = KeyOf<kSummary>;

// NaN: not known. Speeds leave out each session's first steps, in which kernels are tuned and graphs captured.
struct RunSummary {
  std::string state;               // "finished", "stopped", "failed", "running", "not finished" (killed)
  std::int64_t steps = 0, of = 0;  // done, and asked for (0: not known)
  double tokens = 0, seconds = 0;
  double first_loss, last_loss, last_eval, best_eval;
  std::int64_t best_eval_step = 0;
  double pace;                        // tokens a second of the whole run, evaluations and checkpoints included
  double throttled;                   // share of the steps
  double updates_skipped, rollbacks;  // of the run so far
  std::array<double, kSummary.size()> figures{};  // of kSummary
  std::vector<Extrapolation> extrapolations;

  double figure(SummaryKey key) const { return figures[key.index]; }
};

// Includes the time to reach each of `tokens`, at the run's pace.
RunSummary summarise(const RunRecord& run, const std::vector<double>& tokens);

// The rows without each session's slow first steps; all rows where none would be left.
std::vector<std::size_t> steady_rows(const RunRecord& run);

io::Json to_json(const RunRecord& run, const RunSummary& summary);

}  // namespace redline::report
