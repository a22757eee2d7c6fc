// The handlers and the little they need: a signal can come in any thread and in the middle of anything.
#include "cli/signals.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <thread>

#include "base/files.h"
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
void stop() {
  if (g_ending.exchange(true)) return;
  last_words({g_sentence.load()}, kStopped);
}

void on_stop_signal(int number) {
  if (g_caught.hear(number) > 1) train::end_as_without_us(number);
  ++g_hearing;
  if (!g_held) return stop();
  --g_hearing;
}

// Where the file still has the byte, its disk must have failed.
bool still_holds(const MappedByte& byte) {
  struct stat status;
  return ::stat(byte.path, &status) == 0 && static_cast<std::uint64_t>(status.st_size) > byte.offset;
}

// A foreign name on its way to a terminal, as visible() would have it; that one may not be called here.
const char* shown(const char* path) {
  constexpr char kDigits[] = "0123456789abcdef";
  static char text[4 * 4096];
  std::size_t n = 0;
  for (; *path && n + 5 < sizeof text; ++path) {
    const auto byte = static_cast<unsigned char>(*path);
    if (byte >= ' ' && byte < 0x7f) {
      text[n++] = *path;
      continue;
    }
    for (const char c : {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]}) text[n++] = c;
  }
  text[n] = '\0';
  return text;
}

[[noreturn]] void end_without(const MappedByte& byte) {
  const bool disk = still_holds(byte);
  last_words({"redline: error: ", shown(byte.path),
              ": cannot read: ", disk ? "its disk failed" : "it became shorter meanwhile; bring it back whole",
              "; a run goes on from its last checkpoint with --resume"},
             disk ? kFailed : kBadInput);
}

std::atomic<bool> g_looking = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_bus_error(int number, siginfo_t* info, void*) {
  if (g_looking.exchange(true))
    for (;;) ::pause();  // another thread ends the process
  const MappedByte byte = info->si_code == BUS_ADRERR ? mapped_at(info->si_addr) : MappedByte{};
  if (*byte.path) end_without(byte);
  // Without us: what faulted does so again, and what was sent is sent again.
  std::signal(number, SIG_DFL);
  if (info->si_code <= 0) std::raise(number);
}

}  // namespace

StopAtOnce::StopAtOnce(const char* sentence) {
  g_sentence = sentence;
  g_held = false;
  g_caught.forget();
  // An ignored signal stays ignored: a script's Ctrl-C is not for processes that it left behind.
  for (const int number : {SIGINT, SIGTERM})
    if (std::signal(number, SIG_IGN) != SIG_IGN) std::signal(number, on_stop_signal);
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
  stop();
  for (;;) ::pause();  // until another thread has
}

void tell_of_lost_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace redline::cli
