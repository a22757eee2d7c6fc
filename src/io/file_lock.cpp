// flock(2). A process that waited for a file which its holder removed has a lock on nothing, and asks again.
#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace redline::io {
namespace {

bool is_still(const Path& file, int descriptor) {
  struct stat named {
  }, held{};
  return ::stat(file.c_str(), &named) == 0 && ::fstat(descriptor, &held) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

}  // namespace

FileLock::FileLock(const Path& file, IfBusy if_busy) : file_(file) {
  for (;;) {
    descriptor_ = ::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor_ < 0) descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);  // another user's
    const int how = LOCK_EX | (if_busy == IfBusy::leave ? LOCK_NB : 0);
    const bool locked = descriptor_ >= 0 && ::flock(descriptor_, how) == 0;
    error_ = locked ? 0 : errno;
    if (locked && is_still(file, descriptor_)) return;
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    if (!locked && error_ != EINTR) return;
  }
}

FileLock::~FileLock() {
  if (held()) ::close(descriptor_);
}

bool FileLock::in_place() const { return !held() || is_still(file_, descriptor_); }

bool FileLock::busy() const { return error_ == EWOULDBLOCK; }

}  // namespace redline::io
