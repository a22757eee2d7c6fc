// Seconds that measuring at a start may take, and the choice of the fastest among candidates within them. The clock is
// an argument, for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace redline {

class Budget {
 public:
  using Now = std::function<double()>;
  explicit Budget(double seconds, Now now = steady_seconds) : seconds_(seconds), now_(std::move(now)) {}

  double spent() const { return spent_; }
  double left() const { return seconds_ - spent_; }
  bool over() const { return left() <= 0; }
  double now() const { return now_(); }

  // What it takes counts.
  template <class Work>
  auto spend(const Work& work) {
    const Counting counting{*this, now_()};
    return work();
  }

 private:
  struct Counting {
    Budget& of;
    double begin;
    ~Counting() { of.spent_ += of.now_() - begin; }
  };
  double seconds_, spent_ = 0;
  Now now_;
};

struct TimedChoice {
  std::size_t fastest = 0;
  std::vector<double> seconds = {};  // of the candidates that were tried, the first ones
};
// Times candidates in turn, while the budget lasts: the first one always, unless nothing is left at all. `run(i)` runs
// candidate i once and returns its seconds. The first run of each loads its kernels and does not count; then a short
// one runs several times, and a long one, or one that is far behind, once.
template <class Run>
TimedChoice fastest_within(Budget& budget, std::size_t candidates, const Run& run) {
  constexpr int kRuns = 3;
  constexpr double kLong = 0.05, kFarBehind = 1.5;
  TimedChoice choice;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < candidates && !budget.over(); ++i)
    budget.spend([&] {
      run(i);
      double seconds = run(i), sum = seconds;
      for (int n = 1; n < kRuns && sum < kLong && seconds < kFarBehind * best; ++n) {
        const double again = run(i);
        sum += again;
        seconds = std::min(seconds, again);
      }
      choice.seconds.push_back(seconds);
      if (seconds < best) best = seconds, choice.fastest = i;
    });
  return choice;
}

}  // namespace redline
