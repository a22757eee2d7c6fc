// One setting after another, each from the best so far: products of all settings would take hours, and they hardly
// depend on each other.
#include "perf/tune.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::perf {
namespace {

constexpr std::size_t kSettings = 4;   // batch sizes and recomputes that are measured
constexpr int kTurns = 3;              // of the winner and the start at the end
constexpr double kForTheEnd = 0.25;    // of the time: the winner against the start
constexpr double kLeastSeconds = 0.2;  // that a candidate is timed for, since the differences are small

SearchOptions timed_longer(SearchOptions options) {
  options.least = kLeastSeconds;
  return options;
}

class Tuning {
 public:
  Tuning(const LoadConfig& load, const Bench& bench, const TuneOptions& options)
      : options_(options), search_(timed_longer(options), bench, load) {
    tuned_.start = tuned_.best = load({});
  }

  Tuned run() {
    // The keys beside the batch are known; the number of batch sizes is a guess until the plan was asked.
    const std::vector<KeyValues> others = other_keys();
    expect(1 + kSettings + others.size());
    try {
      Trial start = measured("the start", {});
      if (!start.measured.done()) fail_user("{}", start.measured.problem);
      start.kept = true;
      best_ = start.measured;
      add(std::move(start));
      const std::vector<Setting> settings = settings_to_try();
      expect(settings.size() + (options_.allow_batch ? 2 : 0) + others.size());
      for (const Setting& s : settings) try_change(in_words(s, ", "), keys_of_setting(s));
      if (options_.allow_batch) {  // twice the rows of the best so far, in micro-batches of both kinds
        const Setting best = setting_of(search_.load(keys_));
        for (const Setting& s : {Setting{best.batch_size, 2 * best.accumulate, best.recompute},
                                 Setting{2 * best.batch_size, best.accumulate, best.recompute}})
          try_change(in_words(s, ", "), keys_of_setting(s));
      }
      for (const KeyValues& keys : others) try_change(fmt::format("{}", fmt::join(keys, " ")), keys);
      hold_against_the_start();
    } catch (const Interrupted&) {
      tuned_.stopped = true;
    }
    if (!tuned_.faster) tuned_.best = tuned_.start;
    return std::move(tuned_);
  }

 private:
  // The search leaves some of the time for the turns at the end.
  void expect(std::size_t candidates) { search_.expect(candidates, 1 - kForTheEnd, 2 * kTurns); }

  // Each alone, in the order in which they are tried.
  std::vector<KeyValues> other_keys() const {
    if (search_.bench().kind == device::Kind::cpu) return {{"kernels.logits_rows=0"}, {"kernels.logits_rows=2048"}};
    std::vector<KeyValues> all = {{"kernels.tuning=max"},       {"kernels.attention=auto"},
                                  {"kernels.attention=hopper"}, {"kernels.attention=cudnn"},
                                  {"kernels.attention=flash"},  {"kernels.logits_rows=0"},
                                  {"kernels.logits_rows=8192"}, {"kernels.logits_rows=32768"},
                                  {"kernels.graphs=auto"},      {"kernels.graphs=off"}};
    if (options_.allow_fp8) all.insert(all.begin(), {"precision.matmul=fp8", "precision.fp8=auto"});
    return all;
  }

  KeyValues keys_of_setting(const Setting& s) const {
    KeyValues keys = keys_of(s);
    keys.push_back(fmt::format("train.recompute={}", s.recompute));
    const config::Config changed = with_setting(tuned_.start, s);
    if (changed.optim.lr != tuned_.start.optim.lr) {
      keys.push_back(fmt::format("optim.lr={}", changed.optim.lr));
      keys.push_back(fmt::format("optim.min_lr={}", changed.optim.min_lr));
    }
    return keys;
  }

  // The plan's best with the rows of the step.
  std::vector<Setting> settings_to_try() const {
    const std::int64_t rows = setting_of(tuned_.start).rows();
    std::vector<Setting> settings = search_.bench().settings(tuned_.start);
    std::erase_if(settings, [&](const Setting& s) { return s == setting_of(tuned_.start) || s.rows() != rows; });
    if (settings.size() > kSettings) settings.resize(kSettings);
    return settings;
  }

  Trial measured(const std::string& name, const KeyValues& keys) {
    Trial row;
    row.name = name;
    search_.measure(row, keys);
    if (row.measured.done()) row.reason.clear();  // a remark on the run is no reason here
    return row;
  }

  void add(Trial row) {
    const double start = (tuned_.rows.empty() ? row : tuned_.rows[0]).measured.tokens_per_s;
    if (row.measured.done() && start > 0) row.over_first = row.measured.tokens_per_s / start;
    tuned_.rows.push_back(std::move(row));
  }

  void try_change(const std::string& name, const KeyValues& change) {
    if (!search_.has_effect(keys_, change)) return search_.leave_out();  // nothing to measure
    const KeyValues keys = over(keys_, change);
    Trial row = measured(name, keys);
    const Measured& m = row.measured;
    row.kept = m.done() && m.tokens_per_s >= best_.tokens_per_s * (1 + std::max(m.noise, best_.noise));
    if (row.kept) {
      row.reason = "taken";
      keys_ = keys;
      best_ = m;
    }
    add(std::move(row));
  }

  // In turns, so that a card that grows hot or a machine that others use is hard on both alike.
  void hold_against_the_start() {
    if (keys_.empty()) return;
    search_.expect(2 * kTurns);
    std::vector<Measured> starts, winners;
    for (int turn = 0; turn < kTurns; ++turn) {
      starts.push_back(measured("the start again", {}).measured);
      winners.push_back(measured("the winner again", keys_).measured);
      if (!starts.back().done() || !winners.back().done()) return;
    }
    const auto middle = [](std::vector<Measured>& all) {
      std::ranges::sort(all, {}, &Measured::tokens_per_s);
      Measured m = all[all.size() / 2];
      const double spread = all.back().tokens_per_s - all.front().tokens_per_s;
      m.noise = std::max(m.noise, spread / m.tokens_per_s / 2);
      return m;
    };
    tuned_.start_again = middle(starts);
    tuned_.best_again = middle(winners);
    const double noise = std::max(tuned_.start_again.noise, tuned_.best_again.noise);
    tuned_.faster = tuned_.best_again.tokens_per_s > tuned_.start_again.tokens_per_s * (1 + noise);
    if (tuned_.faster) tuned_.best = search_.load(keys_);
  }

  const TuneOptions& options_;
  Search search_;
  KeyValues keys_;  // of the best so far, over the start
  Measured best_;
  Tuned tuned_;
};

std::string figures(const Measured& m) {
  if (!m.done()) return m.problem.substr(0, m.problem.find('\n'));
  return fmt::format("{:>10.0f} tokens/s  {:>9.2f} ms  {:>5.1f}% mfu  {:>7.2f} GiB", m.tokens_per_s, m.step_ms,
                     100 * m.mfu, gib(m.memory));
}

}  // namespace

Tuned tune(const LoadConfig& load, const Bench& bench, const TuneOptions& options) {
  return Tuning(load, bench, options).run();
}

std::string overlay_of(const Tuned& tuned, const std::string& device, const std::string& command) {
  std::string out = fmt::format(
      "# Found by `{}` on {}.\n# redline train CONFIG --overlay this file\n#\n# What was measured (real tokens a "
      "second; * became the best so far):\n",
      command, device);
  std::size_t width = 0;
  for (const Trial& row : tuned.rows) width = std::max(width, row.name.size());
  for (const Trial& row : tuned.rows)
    out += fmt::format("# {} {:<{}} {}{}\n", row.kept ? '*' : ' ', row.name, width, figures(row.measured),
                       row.measured.done() ? fmt::format("  x{:.3f}", row.over_first) : "");
  if (tuned.faster)
    out += fmt::format("# In turns at the end: the start {:.0f}, this {:.0f} tokens/s, x{:.3f}.\n",
                       tuned.start_again.tokens_per_s, tuned.best_again.tokens_per_s,
                       tuned.best_again.tokens_per_s / tuned.start_again.tokens_per_s);
  else
    out += "# Nothing was faster than the configuration as it is, beyond noise: no key is changed.\n";
  std::string section;
  for (const std::string& name : config::differing_keys(tuned.start, tuned.best)) {
    const std::size_t dot = name.find('.');
    if (name.substr(0, dot) != section) out += fmt::format("\n[{}]\n", section = name.substr(0, dot));
    out += fmt::format("{} = {}\n", name.substr(dot + 1),
                       config::literal(config::read(*config::find_key(name), tuned.best)));
  }
  return out;
}

}  // namespace redline::perf
