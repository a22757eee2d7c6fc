// A small file that says which process makes a folder: another process neither writes there at the same time, nor takes
// somebody else's folder for what an interrupted one left.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"

namespace redline::io {

// `format` says what kind of work it is; the rest names this machine and process.
std::string work_marker(std::string_view format);

// A UserError led by `where` ("--out DIR") when the marker is broken, or when its process still runs on this machine.
// `doing` says what that one does: "preparing data". A number that a later process got by chance is told by the user.
void refuse_running(FileSystem& files, const Path& marker, std::string_view format, std::string_view where,
                    std::string_view doing);

// Held while a folder is claimed, completed or given up, or a file that processes share is read and replaced: of two that
// want the same one at once, the second waits these milliseconds and then finds what the first has left there. It locks the
// parent of `path`, which must exist; where that cannot be locked the marker has to do.
class ClaimLock {
 public:
  explicit ClaimLock(const Path& path);
  ~ClaimLock();
  ClaimLock(const ClaimLock&) = delete;
  ClaimLock& operator=(const ClaimLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace redline::io
