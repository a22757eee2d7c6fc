// The handler and the little it needs: a signal can come in any thread and in the middle of anything.
#include "cli/stop_at_once.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <thread>

#include "base/signals.h"
#include "cli/commands.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

std::atomic<const char*> g_sentence = nullptr;
std::atomic<bool> g_held = false, g_ending = false;
std::atomic<int> g_hearing = 0;  // handlers that have not decided yet
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);
train::CaughtSignal g_caught;

// Returns where the process is ending already: in another thread, or below this handler in the same one.
void end() {
  if (g_ending.exchange(true)) return;
  last_words({g_sentence.load()}, kStopped);
}

void on_signal(int number) {
  if (g_caught.hear(number) > 1) train::end_as_without_us(number);
  ++g_hearing;
  if (!g_held) return end();
  --g_hearing;
}

}  // namespace

StopAtOnce::StopAtOnce(const char* sentence) {
  g_sentence = sentence;
  g_held = false;
  g_caught.forget();
  // An ignored signal stays ignored: a script's Ctrl-C is not for processes that it left behind.
  for (const int number : {SIGINT, SIGTERM})
    if (std::signal(number, SIG_IGN) != SIG_IGN) std::signal(number, on_signal);
}

StopAtOnce::~StopAtOnce() {
  for (const int number : {SIGINT, SIGTERM})
    if (std::signal(number, SIG_IGN) != SIG_IGN) std::signal(number, SIG_DFL);
}

void StopAtOnce::hold() {
  g_held = true;
  while (g_hearing != 0) std::this_thread::yield();  // another thread may be about to end the process
}

void StopAtOnce::release() {
  g_held = false;
  if (g_caught.number() == 0) return;
  end();
  for (;;) ::pause();  // until another thread has
}

}  // namespace redline::cli
