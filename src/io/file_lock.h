// A lock of the operating system on a file. It ends with its holder, however that ends, and leaves nothing behind.
#pragma once

#include "base/files.h"

namespace redline::io {

class FileLock {
 public:
  enum class IfBusy { wait, leave };
  // Makes the file where it is missing; its folder must exist.
  FileLock(const Path& file, IfBusy if_busy);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return descriptor_ >= 0; }
  bool busy() const;                      // another process has it
  bool in_place() const;                  // false: its file was deleted, and the lock keeps nobody out any more
  int why_not() const { return error_; }  // errno, where it is not held

 private:
  Path file_;
  int descriptor_ = -1, error_ = 0;
};

}  // namespace redline::io
