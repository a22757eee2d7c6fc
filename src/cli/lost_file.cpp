// The handler. Only calls that are safe in one.
#include "cli/lost_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/files.h"
#include "base/signals.h"
#include "cli/commands.h"

namespace redline::cli {
namespace {

// Where the file still has the byte, its disk must have failed.
bool still_holds(const MappedByte& byte) {
  struct stat status;
  return ::stat(byte.path, &status) == 0 && static_cast<std::uint64_t>(status.st_size) > byte.offset;
}

[[noreturn]] void end(const MappedByte& byte) {
  const bool disk = still_holds(byte);
  last_words({"redline: error: ", byte.path,
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
  if (*byte.path) end(byte);
  // Without us: what faulted does so again, and what was sent is sent again.
  std::signal(number, SIG_DFL);
  if (info->si_code <= 0) std::raise(number);
}

}  // namespace

void tell_of_lost_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace redline::cli
