// Holds the last steps, and tensors in eight bits, against what is worth a word.
#include "report/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/small_floats.h"
#include "base/words.h"
#include "config/ramps.h"
#include "report/figures.h"
#include "train/illness.h"

namespace redline::report {
namespace {

constexpr double kMostSaturated = 1e-3, kMostZero = 0.5;

double largest_of(DType format) { return static_cast<double>(fp8_format(format).largest); }

// Above 1 where it is too large.
double too_large(const model::Fp8Seen& t) {
  const double beyond = t.amax * t.scale / largest_of(t.format);  // up to 1 is as it should be
  return std::max(beyond > 1 ? beyond : 0, t.saturated / kMostSaturated);
}

// "is not finite"
std::string in_words(const model::Fp8Seen& t) {
  const std::string_view format = name_of(t.format);
  if (!std::isfinite(t.amax)) return "is not finite";
  if (too_large(t) > 1)
    return fmt::format(
        "leaves the range of {}: its largest magnitude {:.3g} times its scale {:g} is {:.4g}, of at most {:g}, "
        "and {:.2g}% of it are cut off",
        format, t.amax, t.scale, t.amax * t.scale, largest_of(t.format), 100 * t.saturated);
  return fmt::format("is too small for {}: {} of it are zero at its scale of {:g}, its largest magnitude being {:.3g}",
                     format, percent(t.zero), t.scale, t.amax);
}

constexpr double kLeastMemory = 0.60, kSlowStep = 1.5;
constexpr double kBetweenWarnings = 600;        // seconds
constexpr double kOldEnough = 300;              // seconds of a session whose parts say something
constexpr std::int64_t kSlowFirstSteps = 5;     // kernels are tuned, graphs captured, queues filled
constexpr std::size_t kWindow = 50, kFew = 20;  // steps that are looked at; fewer than kFew say nothing

using train::Illness;

bool is_slowed(const device::GpuSample& g) {
  return train::clocks_are_held_down(g.throttle.value_or(""), g.clock_mhz, g.max_clock_mhz);
}

// "what was found: what mends it; where to read on".
std::string sentence(const std::string& found, Illness illness) {
  const train::IllnessRow& row = train::row_of(illness);
  return fmt::format("{}: {}; see {}", found, row.mend, row.section);
}

std::string in_words(const device::GpuSample& g) {
  std::string at;
  if (g.clock_mhz && g.max_clock_mhz) at += fmt::format(", {:.0f} of {:.0f} MHz", *g.clock_mhz, *g.max_clock_mhz);
  if (g.temperature_c) at += fmt::format(", {:.0f} C", *g.temperature_c);
  if (g.power_w) at += fmt::format(", {:.0f} W", *g.power_w);
  if (g.power_w && g.power_limit_w) at += fmt::format(" of {:.0f} W", *g.power_limit_w);
  if (*g.throttle == device::kPowerCap) at += "; a power cap is normal under full load, clocks this low are not";
  return fmt::format("the card holds its clocks down ({}){}; see {}", *g.throttle, at,
                     train::row_of(Illness::throttled).section);
}

}  // namespace

double fp8_trouble(const model::Fp8Seen& t, double padding) {
  if (!std::isfinite(t.amax)) return std::numeric_limits<double>::infinity();
  const double exact = padding < 1 ? padding : 0, small = (t.zero - exact) / (1 - exact);
  return std::max(too_large(t), t.amax > 0 ? small / kMostZero : 0);  // a tensor of nothing but zeros loses nothing
}

void Watch::start(const train::RunHeader& h) {
  if (h.config) log_vocabulary_ = std::log(static_cast<double>(h.config->model.vocab));
  if (h.config) train_ = h.config->train;
  skipped_ = 0;
  window_.clear();
  norms_.clear();
  outside_.clear();
  said_.fill(-std::numeric_limits<double>::infinity());
  unsaid_.fill(0);
  if (!h.card || !h.memory || h.device_memory <= 0) return;
  if (h.batch_was_chosen || h.first_step > 0) return;  // nothing to mend: it is the fastest, or the run's own already
  const double used = static_cast<double>(h.memory->device.total) / static_cast<double>(h.device_memory);
  if (used >= kLeastMemory) return;
  warn_(sentence(
      fmt::format("the run uses {} of the card's {} ({:.0f}%)", bytes(static_cast<double>(h.memory->device.total)),
                  bytes(static_cast<double>(h.device_memory)), 100 * used),
      Illness::small_batch));
}

bool Watch::may_say(Kind kind, double now) {
  if (now >= said_[kind] && now - said_[kind] < kBetweenWarnings) {  // a clock that was set back silences no warning
    ++unsaid_[kind];
    return false;
  }
  said_[kind] = now;
  return true;
}

// Weights that overflow or are all alike have no gradient, and never will have one.
void Watch::look_for_life(const train::StepMetrics& m) {
  if (m.grad_norm != 0 || !may_say(dead, m.time)) return;
  const bool knows_nothing = std::abs(m.loss - log_vocabulary_) < 1e-3 * log_vocabulary_;
  warn_(fmt::format("the gradient of step {} is exactly 0{}: the model learns nothing; see {}", m.step,
                    knows_nothing ? " and its loss that of a guess (the logarithm of model.vocab)" : "",
                    troubleshooting::kDeadModel));
}

// A norm that leaves all others far behind: the update is clipped, but its direction is that of one batch.
void Watch::look_for_spike(const train::StepMetrics& m) {
  if (!std::isfinite(m.grad_norm)) return;  // that has a warning of its own
  const train::IllnessRow& row = train::row_of(Illness::gradient_spike);
  if (norms_.size() >= kFew) {
    const double median = quantile({norms_.begin(), norms_.end()}, 0.5);
    if (median > 0 && m.grad_norm > row.warn_at * median && may_say(spike, m.time)) {
      const std::int64_t others = std::exchange(unsaid_[spike], 0);
      warn_(sentence(fmt::format("the gradient norm of step {} is {}, {:.0f} times the median of {} over the last {}{}",
                                 m.step, plain(m.grad_norm, 2), m.grad_norm / median, plain(median, 2), norms_.size(),
                                 others ? fmt::format(" ({} more since the last warning)", others) : ""),
                     Illness::gradient_spike));
    }
  }
  norms_.push_back(m.grad_norm);
  if (norms_.size() > kWindow) norms_.pop_front();
}

// One sentence, however many there are.
void Watch::look_at_fp8(const train::StepMetrics& m) {
  std::string first;
  std::int64_t others = -1;
  for (const model::Fp8Seen& t : m.fp8->tensors) {
    if (fp8_trouble(t, m.padding) <= 1 || !outside_.insert(t.name).second) continue;
    if (++others == 0) first = fmt::format("step {}: {} {}", m.step, t.name, in_words(t));
  }
  if (others >= 0)
    warn_(fmt::format("{}{}; see {}", first,
                      others ? fmt::format("; as much can be said of {}", counted(others, "more tensor")) : "",
                      troubleshooting::kFp8Range));
}

void Watch::step(const train::StepMetrics& m) {
  look_for_life(m);
  look_for_spike(m);
  if (m.fp8) look_at_fp8(m);
  if (skipped_ < kSlowFirstSteps) {
    ++skipped_;
    return;
  }
  look_at_step(m);
  const double lag = m.ranks ? m.ranks->slowest_ms.value_or(0) - m.ranks->median_ms.value_or(0) : 0;
  window_.push_back({m.step_ms, m.data_wait_ms, m.padding, lag, share_of_whole(m)});
  if (window_.size() > kWindow) window_.pop_front();
  if (window_.size() >= kFew) look_at_window(m.time);
  if (m.account) look_at_account(*m.account, m.time);
}

// A step that has fewer micro-batches than later ones takes its share of their time.
double Watch::share_of_whole(const train::StepMetrics& m) const {
  return static_cast<double>(config::micro_batches(train_, m.step - 1)) / static_cast<double>(train_.accumulate);
}

void Watch::look_at_step(const train::StepMetrics& m) {
  if (window_.size() >= kFew) {
    std::vector<double> times;
    for (const Step& s : window_) times.push_back(s.step_ms / s.of_whole);
    const double median = quantile(std::move(times), 0.5) * share_of_whole(m);
    const bool own_reason = m.fp8.has_value();  // node by node, and looked at
    if (m.step_ms > kSlowStep * median && !own_reason && may_say(slow_step, m.time)) {
      const std::int64_t others = std::exchange(unsaid_[slow_step], 0);
      warn_(fmt::format("step {} took {}, {:.1f} times the median of {}{}; see {}", m.step, duration(m.step_ms * 1e-3),
                        m.step_ms / median, duration(median * 1e-3),
                        others ? fmt::format(" ({} more since the last warning)", others) : "",
                        troubleshooting::kSlowSteps));
    }
  }
  if (m.gpu && is_slowed(*m.gpu) && may_say(throttled, m.time)) warn_(in_words(*m.gpu));
}

void Watch::look_at_window(double now) {
  double ms = 0, waiting_ms = 0, empty = 0, lag_ms = 0;
  for (const Step& s : window_) {
    ms += s.step_ms;
    waiting_ms += s.data_wait_ms;
    lag_ms += s.lag_ms;
    empty += s.padding / static_cast<double>(window_.size());
  }
  const auto say = [&](Kind kind, Illness illness, double share, const char* what) {
    if (share > train::row_of(illness).warn_at && may_say(kind, now))
      warn_(sentence(fmt::format("{} of the last {} steps' {}", percent(share), window_.size(), what), illness));
  };
  say(waiting, Illness::starving_loader, waiting_ms / ms, "time went to waiting for data");
  say(padding, Illness::padding, empty, "token slots were padding");
  say(slow_rank, Illness::slow_rank, lag_ms / ms, "time went to waiting for one slow rank");
}

// A session that is young has had its first evaluation, and little else.
void Watch::look_at_account(const train::Account& account, double now) {
  using train::Part;
  const double since_start = account.wall() - account.of(Part::start_up) - account.of(Part::standing_still);
  if (since_start < kOldEnough) return;
  const auto say = [&](Kind kind, Illness illness, Part part, const char* what) {
    const double share = account.of(part) / since_start;
    if (share > train::row_of(illness).warn_at && may_say(kind, now))
      warn_(sentence(fmt::format("{} of the session's time went to {}", percent(share), what), illness));
  };
  say(evaluating, Illness::frequent_evaluation, Part::evaluation, "evaluation");
  say(sampling, Illness::frequent_samples, Part::sampling, "samples");
  say(saving, Illness::frequent_saves, Part::saving, "saving");
}

}  // namespace redline::report
