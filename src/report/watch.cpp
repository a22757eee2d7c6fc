// Holds the last steps against what is worth a word.
#include "report/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/counted.h"
#include "base/troubleshooting.h"
#include "config/ramps.h"
#include "report/figures.h"
#include "report/fp8_range.h"

namespace redline::report {
namespace {

constexpr double kMostWaiting = 0.02, kMostPadding = 0.10, kLeastMemory = 0.60, kSlowStep = 1.5;
constexpr double kLowClock = 0.70;       // of the highest; a busy H200 at its power cap keeps 0.76 (1500 of 1980 MHz)
constexpr double kBetween = 600;         // seconds
constexpr std::int64_t kFirstSteps = 5;  // kernels are tuned, graphs captured, queues filled
constexpr std::size_t kWindow = 50, kFew = 20;  // steps that are looked at; fewer than kFew say nothing

// A card at its power cap is a busy card: that alone is worth a word only where it costs much.
bool is_slowed(const device::GpuSample& g) {
  if (g.throttle.value_or("").empty()) return false;
  return *g.throttle != device::kPowerCap ||
         (g.clock_mhz && g.max_clock_mhz && *g.clock_mhz < kLowClock * *g.max_clock_mhz);
}

std::string in_words(const device::GpuSample& g) {
  std::string at;
  if (g.clock_mhz && g.max_clock_mhz) at += fmt::format(", {:.0f} of {:.0f} MHz", *g.clock_mhz, *g.max_clock_mhz);
  if (g.temperature_c) at += fmt::format(", {:.0f} C", *g.temperature_c);
  if (g.power_w) at += fmt::format(", {:.0f} W", *g.power_w);
  if (g.power_w && g.power_limit_w) at += fmt::format(" of {:.0f} W", *g.power_limit_w);
  if (*g.throttle == device::kPowerCap) at += "; a power cap is normal under full load, clocks this low are not";
  return fmt::format("the card holds its clocks down ({}){}; see {}", *g.throttle, at, troubleshooting::kThrottling);
}

}  // namespace

void Watch::start(const train::RunHeader& h) {
  if (h.config) log_vocabulary_ = std::log(static_cast<double>(h.config->model.vocab));
  if (h.config) train_ = h.config->train;
  skipped_ = 0;
  window_.clear();
  outside_.clear();
  said_.fill(-std::numeric_limits<double>::infinity());
  unsaid_.fill(0);
  if (!h.card || !h.memory || h.device_memory <= 0) return;
  if (h.batch_was_chosen || h.first_step > 0) return;  // nothing to mend: it is the fastest, or the run's own already
  const double used = static_cast<double>(h.memory->total) / static_cast<double>(h.device_memory);
  if (used >= kLeastMemory) return;
  warn_(
      fmt::format("the run uses {} of the card's {} ({:.0f}%): a larger train.batch_size or less train.recompute may "
                  "be faster; see {}",
                  bytes(static_cast<double>(h.memory->total)), bytes(static_cast<double>(h.device_memory)), 100 * used,
                  troubleshooting::kUnusedMemory));
}

bool Watch::may_say(Kind kind, double now) {
  if (now >= said_[kind] && now - said_[kind] < kBetween) {  // a clock that was set back silences nobody
    ++unsaid_[kind];
    return false;
  }
  said_[kind] = now;
  return true;
}

// From weights that overflow or are all alike nothing flows back, and nothing ever will.
void Watch::look_for_life(const train::StepMetrics& m) {
  if (m.grad_norm != 0 || !may_say(dead, m.time)) return;
  const bool knows_nothing = std::abs(m.loss - log_vocabulary_) < 1e-3 * log_vocabulary_;
  warn_(fmt::format("the gradient of step {} is exactly 0{}: the model learns nothing; see {}", m.step,
                    knows_nothing ? " and its loss that of a guess (the logarithm of model.vocab)" : "",
                    troubleshooting::kDeadModel));
}

// One sentence, however many there are.
void Watch::look_at_fp8(const train::StepMetrics& m) {
  std::string first;
  std::int64_t others = -1;
  for (const model::Fp8Seen& t : m.fp8->tensors) {
    if (fp8_trouble(t, m.padding) <= 1 || !outside_.insert(t.name).second) continue;
    if (++others == 0) first = fmt::format("step {}: {} {}", m.step, t.name, fp8_trouble_in_words(t));
  }
  if (others >= 0)
    warn_(fmt::format("{}{}; see {}", first,
                      others ? fmt::format("; as much can be said of {}", counted(others, "more tensor")) : "",
                      troubleshooting::kFp8Range));
}

void Watch::step(const train::StepMetrics& m) {
  look_for_life(m);
  if (m.fp8) look_at_fp8(m);
  if (skipped_ < kFirstSteps) {
    ++skipped_;
    return;
  }
  look_at_step(m);
  window_.push_back({m.step_ms, m.data_wait_ms, m.padding, share_of_whole(m)});
  if (window_.size() > kWindow) window_.pop_front();
  if (window_.size() >= kFew) look_at_window(m.time);
}

// A step that has fewer micro-batches than later ones takes its share of their time.
double Watch::share_of_whole(const train::StepMetrics& m) const {
  return static_cast<double>(config::micro_batches(train_, m.step - 1)) / static_cast<double>(train_.accumulate);
}

void Watch::look_at_step(const train::StepMetrics& m) {
  if (window_.size() >= kFew) {
    std::vector<double> times;
    for (const Step& s : window_) times.push_back(s.step_ms / s.of_whole);
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    const double median = times[times.size() / 2] * share_of_whole(m);
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
  double ms = 0, waiting_ms = 0, empty = 0;
  for (const Step& s : window_) {
    ms += s.step_ms;
    waiting_ms += s.data_wait_ms;
    empty += s.padding / static_cast<double>(window_.size());
  }
  if (waiting_ms > kMostWaiting * ms && may_say(waiting, now))
    warn_(
        fmt::format("{} of the last {} steps' time went to waiting for data: more data.workers, a larger "
                    "data.prefetch or prepared data help; see {}",
                    percent(waiting_ms / ms), window_.size(), troubleshooting::kSlowData));
  if (empty > kMostPadding && may_say(padding, now))
    warn_(
        fmt::format("{} of the last {} steps' token slots were padding: data.packing = \"pack\" or \"stream\" fills "
                    "them; see {}",
                    percent(empty), window_.size(), troubleshooting::kPadding));
}

}  // namespace redline::report
