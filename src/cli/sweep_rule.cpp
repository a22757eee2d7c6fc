// The rule that --help and docs/training.md state.
#include "cli/sweep_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/words.h"

namespace redline::cli {
namespace {

auto batch_and_length(const config::Train& t) {
  return std::tie(t.batch_size, t.automatic_batch_size, t.accumulate, t.seq_len, t.accumulate_from,
                  t.accumulate_ramp_steps, t.seq_len_from, t.seq_len_ramp_steps, t.max_steps, t.max_tokens, t.epochs,
                  t.max_hours, t.fit_hours, t.eval_batches);
}

auto schedule(const config::Optim& o) {
  return std::tie(o.schedule, o.decay_fraction, o.decay_tokens, o.decay_shape, o.schedule_start);
}

}  // namespace

bool comparable(const config::Config& a, const config::Config& b) {
  return a.data == b.data && a.model.vocab == b.model.vocab && batch_and_length(a.train) == batch_and_length(b.train) &&
         schedule(a.optim) == schedule(b.optim);
}

std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin) {
  if (run.evaluations->empty()) return {};
  const auto [step, own] = *run.evaluations->rbegin();
  if (steps == 0 || step * 4 < steps || step >= steps) return {};
  if (!std::isfinite(own)) return fmt::format("its held-out loss at step {} is not finite", step);
  std::map<std::string, double> worth = {{run.group, own}};
  for (const JudgedRun& other : others) {
    const auto at = other.evaluations->find(step);
    if (at == other.evaluations->end() || !comparable(*run.config, *other.config)) continue;
    const auto [it, is_new] = worth.try_emplace(other.group, at->second);
    if (!is_new) it->second = std::min(it->second, at->second);
  }
  const double own_worth = worth.extract(run.group).mapped();
  std::vector<double> losses;
  for (const auto& [group, loss] : worth) losses.push_back(loss);
  if (losses.empty()) return {};
  std::ranges::sort(losses);
  const double middle = losses[(losses.size() - 1) / 2];
  if (!(own_worth > middle * (1 + margin))) return {};
  return fmt::format("held-out loss {:.4f} at step {}, {:.1f}% above {:.4f}, the median of {} there", own, step,
                     100 * (own / middle - 1), middle, counted(losses.size(), "other setting"));
}

}  // namespace redline::cli
