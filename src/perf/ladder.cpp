// A rung stays where it makes the step no slower, so that the last row is the best that the rungs give together.
#include "perf/ladder.h"

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "perf/what_runs.h"

namespace redline::perf {
namespace {

constexpr double kLeastSeconds = 0.2;

KeyValues keys_of(const Setting& s) {
  return {fmt::format("train.batch_size={}", s.batch_size), fmt::format("train.accumulate={}", s.accumulate)};
}

// One line, without what other lines would say.
std::string sentence(const std::string& text) { return text.substr(0, text.find('\n')); }

class Climbing {
 public:
  Climbing(const LoadConfig& load, const Bench& bench, const LadderOptions& options)
      : load_(load), bench_(bench), options_(options), own_(load({})), rungs_(rungs()) {
    for (const Rung& rung : rungs_) left_ += rung.kind != RungKind::absent;
    of_ = ++left_;  // and the first row
  }

  Ladder up() {
    put_base();
    try {
      first("naive", "every rung off: fp32, plain attention, one document a row" + base_, naive_);
      for (const Rung& rung : rungs_) step_on(rung);
      add_fused();
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    ladder_.full = keys_;
    return std::move(ladder_);
  }

  Ladder leave_out() {
    put_base();
    KeyValues full = naive_;
    for (const Rung& rung : rungs_)
      if (rung.kind == RungKind::speed && has_effect(full, rung.keys) && !simulated(load_(over(full, rung.keys))))
        full = over(full, rung.keys);
    try {
      first("the full step", "every rung on that makes it faster", full);
      KeyValues before = naive_;  // what a rung's key was below it
      for (const Rung& rung : rungs_) {
        if (rung.kind == RungKind::memory || rung.kind == RungKind::batch) {
          --left_;
          continue;
        }
        leave(rung, before);
        before = over(before, rung.keys);
      }
      add_fused();
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    ladder_.full = full;
    return std::move(ladder_);
  }

  Ladder tiers_up_to(std::string_view last) {
    const Tier& end = tier_called(last);
    of_ = left_ = static_cast<std::size_t>(&end - tiers().data()) + 1;
    try {
      for (const Tier& tier : tiers()) {
        LadderRow row = row_of({std::string(tier.name), RungKind::speed, tier.keys, std::string(tier.about)});
        measure_row(row, tier.keys);
        row.kept = row.state == RowState::measured;
        if (ladder_.rows.empty() || !before_.done()) before_ = first_ = row.measured;
        put_factors(row);
        if (row.kept) before_ = row.measured, ladder_.full = tier.keys;
        ladder_.rows.push_back(std::move(row));
        if (&tier == &end) break;
      }
    } catch (const Interrupted&) {
      ladder_.stopped = true;
    }
    return std::move(ladder_);
  }

 private:
  // The rows of a micro-batch with which the naive step fits: the configuration's own, or the most below that divide
  // them.
  void put_base() {
    Setting base = setting_of(own_);
    const Setting own = base;
    for (std::int64_t parts = 1; parts <= own.batch_size; ++parts) {
      if (own.batch_size % parts != 0) continue;
      base = {own.batch_size / parts, own.accumulate * parts, "none"};
      naive_ = naive_keys(own_, base);
      if (bench_.fits(load_(naive_))) break;
    }
    if (base.batch_size != own.batch_size)
      base_ = fmt::format("; {} rows x {}, since {} do not fit", base.batch_size, base.accumulate, own.batch_size);
    keys_ = naive_;
  }

  LadderRow row_of(const Rung& rung) const {
    LadderRow row;
    row.name = rung.name;
    row.keys = rung.keys;
    row.about = rung.about;
    row.changes_loss = rung.changes_loss;
    return row;
  }

  bool has_effect(const KeyValues& without, const KeyValues& keys) const {
    try {
      return what_runs(load_(without), bench_.kind) != what_runs(load_(over(without, keys)), bench_.kind);
    } catch (const UserError&) {
      return true;  // the measurement says what is wrong
    }
  }

  bool simulated(const config::Config& config) const {
    return bench_.kind == device::Kind::cpu && config.precision.matmul == "fp8";
  }

  double share() const {
    const double rest = options_.seconds - (steady_seconds() - begin_);
    return std::max(kLeastSeconds, rest / static_cast<double>(std::max<std::size_t>(left_, 1)));
  }

  // Fills in state and reason where a row cannot be measured. Half of its share is for the time before the timed steps.
  void measure_row(LadderRow& row, const KeyValues& keys) {
    end_if_asked(options_.stop);
    if (options_.progress) options_.progress(row.name, of_ - left_ + 1, of_);
    try {
      const config::Config config = load_(keys);
      if (simulated(config))
        row.measured.problem = "the CPU only simulates fp8, to be the truth for cards";
      else
        row.measured = bench_.measure(config, share() / 2);
      row.reason = sentence(row.measured.done() ? row.measured.note : row.measured.problem);
    } catch (const UserError& e) {  // keys that do not go together
      row.reason = row.measured.problem = sentence(e.what());
    }
    if (!row.measured.done()) row.state = RowState::failed;
    --left_;
  }

  void first(const std::string& name, const std::string& about, const KeyValues& keys) {
    LadderRow row = row_of({name, RungKind::speed, keys, about});
    measure_row(row, keys);
    first_ = before_ = row.measured;
    row.kept = row.measured.done();
    put_factors(row);
    ladder_.rows.push_back(std::move(row));
    keys_ = keys;
  }

  void put_factors(LadderRow& row) const {
    if (!row.measured.done()) return;
    const auto factor = [&](const Measured& m) {
      return m.done() && m.tokens_per_s > 0 ? row.measured.tokens_per_s / m.tokens_per_s : 0.0;
    };
    row.over_before = factor(before_);
    row.over_first = factor(first_);
  }

  void step_on(const Rung& rung) {
    LadderRow row = row_of(rung);
    if (rung.kind == RungKind::absent) {
      row.state = RowState::absent;
      row.reason = rung.lacks;
      ladder_.rows.push_back(std::move(row));
      return;
    }
    std::string lacks = rung.lacks;
    if (rung.kind == RungKind::batch) {
      const std::vector<Setting> settings = bench_.settings(load_(keys_));
      if (!settings.empty()) row.keys = keys_of(settings.front());
      lacks = settings.empty() ? "nothing fits" : "the plan's choice is what was measured already";
    }
    if (row.keys.empty() || !has_effect(keys_, row.keys)) {
      row.state = RowState::no_effect;
      row.reason = lacks.empty() ? "it changes nothing here" : lacks;
      keys_ = over(keys_, row.keys);  // costs nothing, and the full step has no key of the naive one left
      --left_;
      ladder_.rows.push_back(std::move(row));
      return;
    }
    const KeyValues keys = over(keys_, row.keys);
    measure_row(row, keys);
    put_factors(row);
    decide(row, rung, keys);
    ladder_.rows.push_back(std::move(row));
  }

  // Decides whether a rung stays. A rung that could not be measured does not. Where the naive step could not, the first
  // rung that can be measured stays.
  void decide(LadderRow& row, const Rung& rung, const KeyValues& keys) {
    if (!row.measured.done()) return;
    const double noise = std::max(row.measured.noise, before_.noise);
    const double least = !before_.done() ? 0 : rung.kind == RungKind::memory ? 1 + noise : 1 - noise;
    row.kept = row.over_before >= least;
    if (!row.kept) {
      row.reason = rung.kind == RungKind::memory ? "saves memory and is no faster: not in what follows"
                                                 : "slower here: not in what follows";
      return;
    }
    keys_ = keys;
    before_ = row.measured;
    if (first_.done()) return;
    first_ = row.measured;
    row.over_first = 1;
  }

  void leave(const Rung& rung, const KeyValues& before) {
    LadderRow row = row_of(rung);
    KeyValues undone;
    for (const std::string& pair : rung.keys)
      for (const std::string& known : before)
        if (key_of(known) == key_of(pair)) undone.push_back(known);
    row.name = "without " + rung.name;
    row.keys = undone;
    if (rung.kind == RungKind::absent || undone.empty() || !has_effect(keys_, undone)) {
      row.state = rung.kind == RungKind::absent ? RowState::absent : RowState::no_effect;
      row.reason = rung.lacks.empty() ? "it changes nothing here" : rung.lacks;
      if (rung.kind != RungKind::absent) --left_;
      ladder_.rows.push_back(std::move(row));
      return;
    }
    measure_row(row, over(keys_, undone));
    put_factors(row);
    ladder_.rows.push_back(std::move(row));
  }

  void add_fused() {
    config::Config config = load_(over(keys_, {"precision.matmul=bf16"}));
    for (const Fused& fused : fused_savings(config, bench_.kind)) {
      LadderRow row;
      row.name = fused.name;
      row.about = fused.about;
      row.state = RowState::not_separable;
      row.saved_bytes = fused.bytes;
      ladder_.rows.push_back(std::move(row));
    }
  }

  const LoadConfig& load_;
  const Bench& bench_;
  const LadderOptions& options_;
  const config::Config own_;
  const std::vector<Rung> rungs_;
  const double begin_ = steady_seconds();
  std::size_t left_ = 0, of_ = 0;  // rows that are to be measured
  KeyValues naive_, keys_;         // keys_: what has stayed
  std::string base_;               // why the naive step has other rows than the configuration's
  Measured first_, before_;
  Ladder ladder_;
};

}  // namespace

std::string_view name_of(RowState state) {
  switch (state) {
    case RowState::measured: return "measured";
    case RowState::failed: return "cannot be run";
    case RowState::no_effect: return "changes nothing";
    case RowState::not_separable: return "not separable";
    case RowState::absent: return "not there";
  }
  return "";
}

Ladder climb(const LoadConfig& load, const Bench& bench, const LadderOptions& options) {
  Climbing climbing(load, bench, options);
  return options.without ? climbing.leave_out() : climbing.up();
}

Ladder climb_tiers(const LoadConfig& load, const Bench& bench, const LadderOptions& options, std::string_view last) {
  return Climbing(load, bench, options).tiers_up_to(last);
}

}  // namespace redline::perf
