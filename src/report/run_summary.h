// The few figures that a run is judged by, from its record: for the page and for --json.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "report/run_record.h"

namespace redline::report {

struct Extrapolation {
  double tokens = 0, seconds = 0;
};

// What is not known is NaN. Speeds leave out each session's first steps, in which kernels are tuned and graphs captured.
struct RunSummary {
  std::string state;               // "finished", "stopped", "failed", "not finished"
  std::int64_t steps = 0, of = 0;  // done, and asked for (0: not known)
  double tokens = 0, seconds = 0;
  double first_loss, last_loss, last_eval, best_eval;
  std::int64_t best_eval_step = 0;
  double mean_mfu, peak_mfu, mean_mfu_palm, mean_tflops;
  double mean_tokens_per_s, peak_tokens_per_s;
  double pace;  // tokens a second of the whole run, evaluations and checkpoints included
  double median_step_ms, p95_step_ms, longest_step_ms;
  double padding, data_wait;  // shares
  double memory_gib;
  double gpu_utilisation, gpu_temperature_c, gpu_power_w, gpu_clock_mhz;  // means; the temperature is the highest
  double throttled;                                                       // share of the steps
  std::vector<Extrapolation> extrapolations;
};

// To each of `tokens`, at the run's pace.
RunSummary summarise(const RunRecord& run, const std::vector<double>& tokens);

// A quantile (0 to 1) of what is not NaN; NaN of nothing.
double quantile(std::vector<double> values, double q);

io::Json to_json(const RunRecord& run, const RunSummary& summary);

}  // namespace redline::report
