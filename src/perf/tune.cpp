// One setting after another, each from the best so far: products of all settings would take hours, and they hardly
// depend on each other.
#include "perf/tune.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "config/keys.h"
#include "config/load.h"
#include "perf/what_runs.h"

namespace redline::perf {
namespace {

constexpr std::size_t kSettings = 4;  // batch sizes and recomputes that are measured
constexpr int kTurns = 3;             // of the winner and the start at the end
constexpr double kLeastSeconds = 0.2;
constexpr double kForTheEnd = 0.25;  // of the time: the winner against the start

std::string in_words(const Setting& s) {
  return fmt::format("{} x {}{}", counted(s.batch_size, "row"), s.accumulate,
                     s.recompute == "none" ? "" : fmt::format(", recompute {}", s.recompute));
}

class Tuning {
 public:
  Tuning(const LoadConfig& load, const Bench& bench, const TuneOptions& options)
      : load_(load), bench_(bench), options_(options) {
    tuned_.start = tuned_.best = load({});
  }

  Tuned run() {
    // The keys beside the batch are known; the number of batch sizes is a guess until the plan was asked.
    const std::vector<KeyValues> others = other_keys();
    of_ = 1 + kSettings + others.size() + 2 * kTurns;
    try {
      if (!try_keys("the start", {}).done()) fail_user("{}", tuned_.rows[0].measured.problem);
      const std::vector<Setting> settings = settings_to_try();
      of_ = 1 + settings.size() + others.size() + 2 * kTurns;
      for (const Setting& s : settings) try_change(in_words(s), keys_of(s));
      for (const KeyValues& keys : others) try_change(fmt::format("{}", fmt::join(keys, " ")), keys);
      hold_against_the_start();
    } catch (const Interrupted&) {
      tuned_.stopped = true;
    }
    if (!tuned_.faster) tuned_.best = tuned_.start;
    return std::move(tuned_);
  }

 private:
  // Each alone, in the order in which they are tried.
  std::vector<KeyValues> other_keys() const {
    if (bench_.kind == device::Kind::cpu) return {{"kernels.logits_rows=0"}, {"kernels.logits_rows=2048"}};
    std::vector<KeyValues> all = {{"kernels.tuning=max"},       {"kernels.attention=auto"},
                                  {"kernels.attention=hopper"}, {"kernels.attention=cudnn"},
                                  {"kernels.attention=flash"},  {"kernels.logits_rows=0"},
                                  {"kernels.logits_rows=8192"}, {"kernels.logits_rows=32768"},
                                  {"kernels.graphs=auto"},      {"kernels.graphs=off"}};
    if (options_.allow_fp8) all.insert(all.begin(), {"precision.matmul=fp8", "precision.fp8=auto"});
    return all;
  }

  KeyValues keys_of(const Setting& s) const {
    KeyValues keys = {fmt::format("train.batch_size={}", s.batch_size),
                      fmt::format("train.accumulate={}", s.accumulate), fmt::format("train.recompute={}", s.recompute)};
    const config::Config changed = with_setting(tuned_.start, s);
    if (changed.optim.lr != tuned_.start.optim.lr) {
      keys.push_back(fmt::format("optim.lr={}", changed.optim.lr));
      keys.push_back(fmt::format("optim.min_lr={}", changed.optim.min_lr));
    }
    return keys;
  }

  // The plan's best, and where a step may change, twice its rows.
  std::vector<Setting> settings_to_try() const {
    const std::int64_t rows = setting_of(tuned_.start).rows();
    std::vector<Setting> settings = bench_.settings(tuned_.start);
    std::erase_if(settings, [&](const Setting& s) { return s == setting_of(tuned_.start) || s.rows() != rows; });
    if (settings.size() > kSettings) settings.resize(kSettings);
    if (options_.allow_batch) {
      const Setting best = settings.empty() ? setting_of(tuned_.start) : settings.front();
      settings.push_back({best.batch_size, 2 * best.accumulate, best.recompute});
      settings.push_back({2 * best.batch_size, best.accumulate, best.recompute});
    }
    return settings;
  }

  // Of one measurement: half of its part of what is left, since the other half goes before the timed steps. The search
  // leaves some of the time for the end.
  double share(bool end) const {
    const double rest = (end ? 1 : 1 - kForTheEnd) * options_.seconds - (steady_seconds() - begin_);
    const std::size_t last = end ? of_ : of_ - 2 * kTurns, left = last > rows_ ? last - rows_ : 1;
    return std::max(kLeastSeconds, rest / static_cast<double>(left) / 2);
  }

  Measured measure(const std::string& name, const KeyValues& keys, double seconds) {
    end_if_asked(options_.stop);
    if (options_.progress) options_.progress(name, std::min(++rows_, of_), of_);
    try {
      return bench_.measure(load_(keys), seconds);
    } catch (const UserError& e) {
      Measured m;
      m.problem = e.what();
      return m;
    }
  }

  const Measured& try_keys(const std::string& name, const KeyValues& keys) {
    LadderRow row;
    row.name = name;
    row.measured = measure(name, keys, share(false));
    row.reason = row.measured.problem;
    if (!row.measured.done()) row.state = RowState::failed;
    if (tuned_.rows.empty()) {
      row.kept = true;
      best_ = row.measured;
    }
    const double start = tuned_.rows.empty() ? row.measured.tokens_per_s : tuned_.rows[0].measured.tokens_per_s;
    if (row.measured.done() && start > 0) row.over_first = row.measured.tokens_per_s / start;
    tuned_.rows.push_back(std::move(row));
    return tuned_.rows.back().measured;
  }

  void try_change(const std::string& name, const KeyValues& change) {
    const KeyValues keys = over(keys_, change);
    try {
      if (what_runs(load_(keys), bench_.kind) == what_runs(load_(keys_), bench_.kind)) {
        --of_;  // nothing to measure
        return;
      }
    } catch (const UserError&) {  // the row says what is wrong
    }
    const Measured measured = try_keys(name, keys);
    if (!measured.done()) return;
    if (measured.tokens_per_s < best_.tokens_per_s * (1 + std::max(measured.noise, best_.noise))) return;
    tuned_.rows.back().kept = true;
    tuned_.rows.back().reason = "taken";
    keys_ = keys;
    best_ = measured;
  }

  // In turns, so that a card that grows hot or a machine that others use is hard on both alike.
  void hold_against_the_start() {
    if (keys_.empty()) return;
    std::vector<Measured> starts, winners;
    for (int turn = 0; turn < kTurns; ++turn) {
      starts.push_back(measure("the start again", {}, share(true)));
      winners.push_back(measure("the winner again", keys_, share(true)));
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
    if (tuned_.faster) tuned_.best = load_(keys_);
  }

  const LoadConfig& load_;
  const Bench& bench_;
  const TuneOptions& options_;
  const double begin_ = steady_seconds();
  std::size_t rows_ = 0, of_ = 0;  // measurements: begun, and of how many
  KeyValues keys_;                 // of the best so far, over the start
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
  for (const LadderRow& row : tuned.rows) width = std::max(width, row.name.size());
  for (const LadderRow& row : tuned.rows)
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
