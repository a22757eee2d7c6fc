// A lock of the system's on a file in the run folder.
#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace redline::train {

RunLock::RunLock(const Path& folder) : file_(folder / ".lock") {
  descriptor_ = ::open(file_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0) descriptor_ = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC);  // another user's
  if (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int why = errno;
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (why == EWOULDBLOCK) {
    fail_user("{}: another process is training into this folder; wait for it, stop it, or choose another --out",
              folder.string());
  }
  log::warn("{} cannot be locked ({}): nothing keeps a second run out of this folder", file_.string(),
            std::strerror(why));
}

bool RunLock::in_place() const {
  if (descriptor_ < 0) return true;
  struct stat ours {
  }, there{};
  return ::fstat(descriptor_, &ours) == 0 && ::stat(file_.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace redline::train
