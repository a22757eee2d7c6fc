// Warns when a run is slower than it could be, or learns nothing, with the reason and where to read on.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "model/fp8_linears.h"
#include "train/observer.h"

namespace redline::report {

// Above 1 a tensor in eight bits is in trouble: it leaves the range of its format, more than 0.1% of it is cut off,
// more than half of it is zero, or it is not finite. `padding` is the share of empty token slots, whose gradients are
// rightly zero.
double fp8_trouble(const model::Fp8Seen& t, double padding = 0);

// The illnesses are those of train/illness.h. Each kind of warning comes at most every ten minutes, and once for a
// tensor in eight bits, so that warnings do not flood the log.
class Watch final : public train::Observer {
 public:
  using Say = std::function<void(const std::string& sentence)>;
  explicit Watch(Say warn) : warn_(std::move(warn)) {}

  void on(const train::Event& event) override {
    hear(
        event, [&](const train::Started& e) { start(e); }, [&](const train::Stepped& e) { step(e); });
  }

 private:
  enum Kind { waiting, padding, slow_step, throttled, dead, slow_rank, evaluating, sampling, saving, spike, kKinds };
  struct Step {
    double step_ms, data_wait_ms, padding;
    double lag_ms;    // by which the slowest rank is later than the median one
    double of_whole;  // its share of the micro-batches of a full step
  };
  void start(const train::RunHeader& header);
  void step(const train::StepMetrics& m);
  void look_at_window(double now);
  void look_at_account(const train::Account& account, double now);
  void look_for_life(const train::StepMetrics& m);
  void look_for_spike(const train::StepMetrics& m);
  double share_of_whole(const train::StepMetrics& m) const;
  void look_at_step(const train::StepMetrics& m);
  void look_at_fp8(const train::StepMetrics& m);
  bool may_say(Kind kind, double now);  // true: it counts as said now

  Say warn_;
  config::Train train_;        // of the run, whose steps may grow
  double log_vocabulary_ = 0;  // the loss of whoever knows nothing
  std::int64_t skipped_ = 0;   // steps at the start that are slow for reasons of their own
  std::deque<Step> window_;    // the last ones
  std::deque<double> norms_;   // of the gradients of the last ones, from the first step on
  std::array<double, kKinds> said_{};
  std::array<std::int64_t, kKinds> unsaid_{};  // since then
  std::set<std::string> outside_;              // tensors in eight bits that were warned of
};

}  // namespace redline::report
