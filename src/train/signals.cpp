// The handlers of SIGINT and SIGTERM.
#include "train/signals.h"

#include <csignal>
#include <initializer_list>

namespace redline::train {
namespace {
std::atomic<int> g_caught{0};  // the one global: a signal handler has nowhere else to write
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (g_caught.exchange(number) != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}
}  // namespace

StopSignals::StopSignals() {
  g_caught = 0;
  for (int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}
StopSignals::~StopSignals() {
  for (int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
}
const std::atomic<int>& StopSignals::caught() const { return g_caught; }

}  // namespace redline::train
