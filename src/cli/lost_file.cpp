// The handler. Which file is mapped where is asked of the system when it matters (/proc/self/maps), so that mapping costs
// nothing more. Only calls that are safe in a handler.
#include "cli/lost_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "cli/commands.h"
#include "cli/last_words.h"

namespace redline::cli {
namespace {

// The lines of a file, as long as a path may make them; what is longer is cut.
class Lines {
 public:
  void open(const char* path) { file_ = ::open(path, O_RDONLY | O_CLOEXEC); }

  bool next() {
    length_ = 0;
    for (;;) {
      if (at_ == got_) {
        got_ = ::read(file_, piece_.data(), piece_.size());
        at_ = 0;
        if (got_ <= 0) return false;
      }
      const char c = piece_[static_cast<std::size_t>(at_++)];
      if (c == '\n') return true;
      if (length_ < line_.size() - 1) line_[length_++] = c;
    }
  }
  // Ends with a zero.
  std::string_view line() {
    line_[length_] = '\0';
    return {line_.data(), length_};
  }

 private:
  int file_ = -1;
  ssize_t at_ = 0, got_ = 0;
  std::size_t length_ = 0;
  std::array<char, 4096> piece_{};
  std::array<char, PATH_MAX + 128> line_{};
};

struct MappedByte {
  std::string_view path;
  std::uint64_t offset = 0;
};

// "ffff8a4c0000-ffff8a4c1000 r--s 00000000 fe:01 1234    /data/train.bin" where that holds the address and is as we map
// data: shared, to be read. Anything else is not ours.
bool parse(std::string_view line, std::uintptr_t address, MappedByte& byte) {
  std::uintptr_t begin = 0, end = 0;
  std::uint64_t offset = 0;
  const char* const last = line.data() + line.size();
  constexpr std::string_view kOurs = " r--s ";
  const auto number = [&](const char* from, auto& value) { return std::from_chars(from, last, value, 16).ptr; };
  const char* at = number(line.data(), begin);
  if (at == last || *at != '-') return false;
  at = number(at + 1, end);
  if (!std::string_view(at, last).starts_with(kOurs) || address < begin || address >= end) return false;
  number(at + kOurs.size(), offset);
  const std::size_t path = line.find('/');
  if (path == line.npos) return false;
  byte = {line.substr(path), offset + (address - begin)};
  return true;
}

// Where the file still holds the byte, only its disk can have kept it back.
bool still_holds(const MappedByte& byte) {
  struct stat status;
  return ::stat(byte.path.data(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) > byte.offset;
}

[[noreturn]] void end(const MappedByte& byte) {
  const bool disk = still_holds(byte);
  last_words({"redline: error: ", byte.path,
              ": cannot read: ", disk ? "its disk failed" : "it became shorter meanwhile; bring it back whole",
              "; a run goes on from its last checkpoint with --resume"},
             disk ? kFailed : kBadInput);
}

std::atomic<bool> g_looking = false;
constinit Lines g_maps;  // not on the stack, which may be small in a thread
static_assert(std::atomic<bool>::is_always_lock_free);

void on_bus_error(int number, siginfo_t* info, void*) {
  if (g_looking.exchange(true))
    for (;;) ::pause();  // another thread ends the process
  if (info->si_code == BUS_ADRERR) {
    g_maps.open("/proc/self/maps");
    MappedByte byte;
    while (g_maps.next())
      if (parse(g_maps.line(), reinterpret_cast<std::uintptr_t>(info->si_addr), byte)) end(byte);
  }
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
