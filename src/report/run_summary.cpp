// Means are over time, not over steps: a slow step counts for as long as it took.
#include "report/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/json.h"

namespace redline::report {
namespace {

constexpr std::int64_t kFirstSteps = 3;  // of a session
constexpr std::size_t kLastLosses = 20;  // one step's loss is noise

// The mean of `values` at `rows`, each weighed by `weights`; unknown ones are left out.
double mean(const std::vector<std::size_t>& rows, const std::vector<double>& values,
            const std::vector<double>& weights) {
  double sum = 0, weight = 0;
  for (const std::size_t i : rows) {
    if (std::isnan(values[i]) || std::isnan(weights[i])) continue;
    sum += values[i] * weights[i];
    weight += weights[i];
  }
  return weight > 0 ? sum / weight : kUnknown;
}

double largest(const std::vector<std::size_t>& rows, const std::vector<double>& values) {
  double most = kUnknown;
  for (const std::size_t i : rows)
    if (!std::isnan(values[i]) && !(values[i] <= most)) most = values[i];
  return most;
}

double statistic(const RunRecord& run, const std::vector<std::size_t>& rows, const SummaryFigure& figure) {
  const std::vector<double>&values = run.column(figure.column), &ms = run.column("step_ms"), ones(run.rows(), 1.0);
  const auto at_quantile = [&](double q) {
    std::vector<double> chosen;
    for (const std::size_t i : rows) chosen.push_back(values[i]);
    return quantile(std::move(chosen), q);
  };
  switch (figure.statistic) {
    case Statistic::mean_over_time: return mean(rows, values, ms);
    case Statistic::mean: return mean(rows, values, ones);
    case Statistic::largest: return largest(rows, values);
    case Statistic::median: return at_quantile(0.5);
    case Statistic::p95: return at_quantile(0.95);
    case Statistic::share_of_step: break;
  }
  const double step_ms = mean(rows, ms, ones);
  return step_ms > 0 ? mean(rows, values, ones) / step_ms : kUnknown;
}

std::string state_of(const RunRecord& run, std::int64_t done, std::int64_t of) {
  if (of > 0 && done >= of) return "finished";
  for (auto e = run.events.rbegin(); e != run.events.rend(); ++e) {
    if (e->kind == "failed" || e->kind == "stopped") return e->kind;
    if (e->kind == "finished") return e->text.starts_with("stopped") ? "stopped" : "finished";
    if (e->kind == "started") break;
  }
  return run.running ? "running" : "not finished";
}

}  // namespace

std::vector<std::size_t> steady_rows(const RunRecord& run) {
  std::vector<std::size_t> rows, all;
  for (std::size_t i = 0; i < run.rows(); ++i) {
    if (run.steps[i] == 0) continue;  // an evaluation before the first step
    all.push_back(i);
    const auto begins = [&](std::int64_t first) { return run.steps[i] > first && run.steps[i] <= first + kFirstSteps; };
    const bool early = begins(0) || std::ranges::any_of(run.sessions, begins, &SessionStart::first_step);
    if (!early) rows.push_back(i);
  }
  return rows.empty() ? all : rows;
}

RunSummary summarise(const RunRecord& run, const std::vector<double>& tokens) {
  RunSummary s;
  s.steps = run.rows() ? run.steps.back() : 0;
  s.of = run.sessions.empty() ? 0 : run.sessions.back().steps;
  s.state = state_of(run, s.steps, s.of);
  s.tokens = run.rows() ? run.tokens_so_far.back() : 0;
  s.seconds = run.rows() ? run.seconds_so_far.back() : 0;
  s.pace = s.seconds > 0 ? s.tokens / s.seconds : kUnknown;

  const std::vector<double>&loss = run.column("loss"), &eval = run.column("eval_loss");
  const auto first = std::ranges::find_if_not(loss, [](double v) { return std::isnan(v); });
  s.first_loss = first != loss.end() ? *first : kUnknown;  // step 0 has an evaluation alone
  const std::size_t last = std::min(kLastLosses, run.rows());
  s.last_loss = quantile({loss.end() - static_cast<std::ptrdiff_t>(last), loss.end()}, 0.5);
  s.last_eval = s.best_eval = kUnknown;
  for (std::size_t i = 0; i < run.rows(); ++i) {
    if (std::isnan(eval[i])) continue;
    s.last_eval = eval[i];
    if (eval[i] >= s.best_eval) continue;
    s.best_eval = eval[i];
    s.best_eval_step = run.steps[i];
  }

  const std::vector<std::size_t> steady = steady_rows(run);
  for (const SummaryFigure& f : kSummary) s.figures[SummaryKey(f).index] = statistic(run, steady, f);
  s.throttled = run.gpu_rows ? static_cast<double>(run.throttled_rows) / static_cast<double>(run.gpu_rows) : kUnknown;
  const auto last_of = [&](Column c) {
    const auto& values = run.column(c);
    const auto known = std::find_if_not(values.rbegin(), values.rend(), [](double v) { return std::isnan(v); });
    return known != values.rend() ? *known : kUnknown;
  };
  s.updates_skipped = last_of("skipped");
  s.rollbacks = last_of("rollbacks");
  for (const double n : tokens) s.extrapolations.push_back({n, s.pace > 0 ? n / s.pace : kUnknown});
  return s;
}

io::Json to_json(const RunRecord& run, const RunSummary& s) {
  io::Json out = {{"run", run.name},
                  {"folder", run.folder.string()},
                  {"state", s.state},
                  {"steps", s.steps},
                  {"steps_asked", s.of},
                  {"tokens", s.tokens},
                  {"seconds", s.seconds},
                  {"first_loss", s.first_loss},
                  {"last_loss", s.last_loss},
                  {"last_eval_loss", s.last_eval},
                  {"best_eval_loss", s.best_eval},
                  {"best_eval_step", s.best_eval_step},
                  {"pace_tokens_per_s", s.pace},
                  {"updates_skipped", s.updates_skipped},
                  {"rollbacks", s.rollbacks}};
  io::Json gpu = io::Json::object();
  for (const SummaryFigure& f : kSummary) (f.gpu ? gpu : out)[std::string(f.key)] = s.figure(SummaryKey(f));
  if (run.gpu_rows > 0) {
    gpu.update({{"throttled", s.throttled}, {"throttle_reasons", run.throttle_reasons}});
    out["gpu"] = std::move(gpu);
  }
  if (!run.sessions.empty()) {
    const SessionStart& start = run.sessions.back();
    io::Json memory = io::Json::object();
    for (const auto& [kind, bytes] : start.memory) memory[kind] = bytes;
    out.update({{"device", start.device},
                {"data", start.data},
                {"parameters", start.parameters},
                {"peak_flops", start.peak_flops},
                {"sessions", run.sessions.size()},
                {"memory_bytes", std::move(memory)}});
  }
  out.update(to_json(run.goodput));
  io::Json extrapolation = io::Json::array();
  for (const Extrapolation& e : s.extrapolations)
    extrapolation.push_back(
        {{"tokens", e.tokens}, {"seconds", e.seconds}, {"hours", e.seconds / 3600}, {"days", e.seconds / 86400}});
  out["extrapolation"] = std::move(extrapolation);
  io::Json warnings = io::Json::array();
  for (const Event& e : run.events)
    if (e.kind == "warning" || e.kind == "skipped" || e.kind == "rolled_back")
      warnings.push_back({{"step", e.step}, {"text", e.text}});
  out["warnings"] = std::move(warnings);
  out["problems"] = run.problems;
  return out;
}

}  // namespace redline::report
