// The handler and the little it needs: a signal can come in any thread and in the middle of anything.
#include "cli/stop_at_once.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <initializer_list>
#include <thread>

#include "cli/commands.h"

namespace redline::cli {
namespace {

std::atomic<const char*> g_sentence = nullptr;
std::atomic<bool> g_held = false;
std::atomic<int> g_caught = 0, g_hearing = 0;  // the signal that waits; handlers that have not decided yet
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

void say(const char* text) { [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text)); }

[[noreturn]] void end() {
  if (::isatty(STDERR_FILENO) == 1) say("\n");  // after a live line and the terminal's ^C
  say(g_sentence);
  say("\n");
  ::_exit(kStopped);
}

void on_signal(int number) {
  ++g_hearing;
  if (!g_held) end();
  --g_hearing;
  if (g_caught.exchange(number) != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

StopAtOnce::StopAtOnce(const char* sentence) {
  g_sentence = sentence;
  g_held = false;
  g_caught = 0;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}

StopAtOnce::~StopAtOnce() {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
}

void StopAtOnce::hold() {
  g_held = true;
  while (g_hearing != 0) std::this_thread::yield();  // another thread may be about to end the process
}

void StopAtOnce::release() {
  g_held = false;
  if (g_caught != 0) end();
}

}  // namespace redline::cli
