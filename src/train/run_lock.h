// One process a run folder: a second one that trained into it would mix its rows and checkpoints with the first's.
#pragma once

#include "base/files.h"

namespace redline::train {

// Held until it is destroyed or the process ends, however that happens: nothing is left to clean up. The folder must
// exist. A folder that another process holds is a UserError; where there can be no lock, that is said.
class RunLock {
 public:
  explicit RunLock(const Path& folder);
  ~RunLock();
  bool in_place()
      const;  // false: its file was deleted, and keeps nobody out any more; true where there could be no lock
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  Path file_;
  int descriptor_ = -1;  // -1: there is no lock
};

}  // namespace redline::train
