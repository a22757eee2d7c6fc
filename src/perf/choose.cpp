// The search over batch sizes and recompute: every way to cut a step's rows into equal micro-batches is planned, those that
// fit are ordered by the step expected of them.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "perf/plan.h"

namespace redline::perf {
namespace {

// Other rows than asked for must be worth it: so much faster than the best way that keeps them.
constexpr double kWorthChanging = 1.1;

constexpr std::int64_t kMostMicroBatches = 1 << 20;  // that train.accumulate takes

struct Cut {
  std::int64_t batch_size, accumulate;
  bool exact;  // the rows of a step are kept
};

// Every size that divides the rows; and, for each small number of micro-batches, the size that comes nearest.
std::vector<Cut> cuts_of(std::int64_t rows) {
  constexpr std::int64_t kFew = 64, kMany = 4096;  // micro-batches
  std::vector<Cut> cuts;
  std::set<std::int64_t> seen;
  const auto add = [&](std::int64_t batch, std::int64_t accumulate) {
    if (accumulate <= kMostMicroBatches && seen.insert(batch).second)
      cuts.push_back({batch, accumulate, batch * accumulate == rows});
  };
  for (std::int64_t n = 1; n <= std::min(rows, kMany); ++n)
    if (rows % n == 0) add(rows / n, n);
  add(1, rows);
  for (std::int64_t n = 2; n <= std::min(rows, kFew); ++n) add((rows + n / 2) / n, n);
  return cuts;
}

}  // namespace

Choice choose(const config::Config& config, const Machine& machine) {
  const bool recompute_is_set = !config.origins.prefix({"train.recompute"}).empty();
  std::vector<std::string> recomputes = {"none", "mlp", "block"};
  if (recompute_is_set) recomputes = {config.train.recompute};

  Choice choice;
  std::vector<Plan> exact, inexact;
  for (const std::string& recompute : recomputes) {
    for (const Cut& cut : cuts_of(setting_of(config).rows())) {
      ++choice.considered;
      Plan p = make_plan(with_setting(config, {cut.batch_size, cut.accumulate, recompute}), machine);
      if (!choice.smallest || p.memory.total() < choice.smallest->memory.total()) choice.smallest = p;
      (!p.fits ? choice.too_large : cut.exact ? exact : inexact).push_back(std::move(p));
    }
  }
  const auto faster = [](const Plan& a, const Plan& b) { return a.expected.tokens_per_s > b.expected.tokens_per_s; };
  std::ranges::stable_sort(exact, faster);
  std::ranges::stable_sort(inexact, faster);
  choice.changed = !exact.empty() && !inexact.empty() &&
                   inexact[0].expected.tokens_per_s > kWorthChanging * exact[0].expected.tokens_per_s;
  choice.best = choice.changed ? std::move(inexact) : std::move(exact);
  return choice;
}

std::string why(const Choice& choice, const Machine& machine) {
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; };
  if (choice.best.empty()) {
    const Plan& least = choice.smallest.value();
    return fmt::format(
        "nothing fits into {:.1f} GiB: even {} row{} with train.recompute = \"{}\" needs {:.1f} GiB; lower "
        "train.seq_len "
        "or the model's size",
        gib(machine.memory), least.setting.batch_size, least.setting.batch_size == 1 ? "" : "s",
        least.setting.recompute, gib(least.memory.total() + least.tuning));
  }
  const Setting& chosen = choice.best[0].setting;
  std::string text = fmt::format("{} of the {} settings looked at fit into {:.1f} GiB; of them this is the fastest",
                                 choice.considered - choice.too_large.size(), choice.considered, gib(machine.memory));
  if (chosen.accumulate == 1) text += ": one micro-batch moves weights and gradients once a step";
  // The least that would have been asked for more: everything kept, or the next larger micro-batch.
  const Plan *kept = nullptr, *larger = nullptr;
  for (const Plan& p : choice.too_large) {
    if (p.setting.batch_size == chosen.batch_size && p.setting.recompute == "none") kept = &p;
    if (p.setting.recompute != chosen.recompute || p.setting.batch_size <= chosen.batch_size) continue;
    if (!larger || p.setting.batch_size < larger->setting.batch_size) larger = &p;
  }
  if (kept) text += fmt::format("; keeping everything would need {:.1f} GiB", gib(kept->memory.total()));
  if (larger)
    text += fmt::format("; {} rows would need {:.1f} GiB", larger->setting.batch_size, gib(larger->memory.total()));
  if (choice.changed) text += "; no size that divides the rows of a step comes near it";
  return text;
}

}  // namespace redline::perf
