// Host and process, in a line of JSON.
#include "io/work_marker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/error.h"
#include "io/json.h"

namespace redline::io {
namespace {

std::string host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace

std::string work_marker(std::string_view format) {
  return Json({{"format", format}, {"version", 1}, {"host", host()}, {"process", ::getpid()}}).dump() + "\n";
}

void refuse_running(FileSystem& files, const Path& path, std::string_view format, std::string_view where,
                    std::string_view doing) {
  const std::string name = path.string(), folder = path.parent_path().string();
  std::int64_t process = 0;
  bool here = false;
  try {
    const Json marker = read_json(files, path);
    process = integer_at(marker, "process", name);
    here = string_at(marker, "format", name) == format && string_at(marker, "host", name) == host();
  } catch (const UserError& e) {
    fail_user("{}: {}; remove the folder {}", where, e.what(), folder);
  }
  if (!here || process <= 0 || process == ::getpid()) return;
  if (::kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM)
    fail_user("{}: process {} is {} there; if it is not, remove the folder {}", where, process, doing, folder);
}

ClaimLock::ClaimLock(const Path& path)
    : descriptor_(::open(parent_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

ClaimLock::~ClaimLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace redline::io
