// The handlers of SIGINT and SIGTERM.
#include "train/signals.h"

#include <csignal>
#include <initializer_list>

#include "base/clock.h"

namespace redline::train {
namespace {

constexpr double kSameSignal = 0.5;  // seconds

CaughtSignal g_caught;  // the one global: a signal handler has nowhere else to write

void on_signal(int number) { g_caught.hear(number); }

}  // namespace

void CaughtSignal::hear(int number) {
  const double now = steady_seconds();
  double first = 0;
  if (heard_at_.compare_exchange_strong(first, now)) {
    number_ = number;
  } else if (now - first > kSameSignal) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

void CaughtSignal::forget() {
  number_ = 0;
  heard_at_ = 0;
}

StopSignals::StopSignals() {
  g_caught.forget();
  for (int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}
StopSignals::~StopSignals() {
  for (int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
}
const std::atomic<int>& StopSignals::caught() const { return g_caught.number(); }

}  // namespace redline::train
