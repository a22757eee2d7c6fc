// The handlers of SIGINT, SIGTERM and SIGHUP.
#include "train/signals.h"

#include <cerrno>
#include <csignal>

#include "base/clock.h"
#include "base/signals.h"

namespace redline::train {
namespace {

constexpr double kSameSignal = 0.5;  // seconds
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The only globals: a signal handler has nowhere else to write.
CaughtSignal g_caught;
StopFlag g_drop = 0;
std::atomic<bool> g_may_drop = false;

void on_signal(int number) {
  const int before = errno;
  const int times = g_caught.hear(number);
  if (times == 0) return;
  if (g_may_drop ? g_drop != 0 : times > 1) return end_as_without_us(number);
  if (g_may_drop && number == SIGINT && times == 1) {
    say_in_handler({"stopping after this step; again: at once"});
  } else if (g_may_drop) {
    g_drop = number;
    say_in_handler({"stopping: the unfinished step is dropped and the state before it saved; again: without saving"});
  }
  errno = before;
}

}  // namespace

int CaughtSignal::hear(int number) {
  const double now = steady_seconds();
  double before = heard_at_;
  if (last_ == number && now - before <= kSameSignal) return 0;
  if (!heard_at_.compare_exchange_strong(before, now)) return 0;  // another thread hears it now
  last_ = number;
  int none = 0;
  number_.compare_exchange_strong(none, number);
  return ++times_;
}

void CaughtSignal::forget() {
  number_ = 0;
  last_ = 0;
  times_ = 0;
  heard_at_ = 0;
}

void end_as_without_us(int number) {
  std::signal(number, SIG_DFL);
  std::raise(number);
}

StopSignals::StopSignals(Asked asked) {
  g_caught.forget();
  g_drop = 0;
  g_may_drop = asked == Asked::to_stop_then_to_drop;
  // Ignored signals stay ignored: nohup's hang-up, and a script's Ctrl-C, which is not for processes that it leaves
  // running.
  for (const int number : kSignals)
    if (std::signal(number, SIG_IGN) != SIG_IGN) std::signal(number, on_signal);
}

StopSignals::~StopSignals() {
  for (const int number : kSignals)
    if (std::signal(number, SIG_IGN) != SIG_IGN) std::signal(number, SIG_DFL);
}

const StopFlag& StopSignals::caught() const { return g_caught.number(); }
const StopFlag& StopSignals::drop() const { return g_drop; }

}  // namespace redline::train
