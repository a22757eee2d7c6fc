// What export and import share: a line of progress while weights are written, a signal that stops them, and what was
// made.
#pragma once

#include <functional>
#include <string>

#include "infer/hf_folders.h"
#include "report/bytes_progress.h"
#include "train/signals.h"

namespace redline::cli {

class Transfer {
 public:
  Transfer(std::string doing, infer::WriteWeights& options);  // sets the options' progress and stop
  // Opens what `checkpoint` names, lets `move` write it into `out` and tells of it. Returns the exit status.
  int run(const std::string& checkpoint, const std::string& out, bool json,
          const std::function<infer::Transferred(const infer::Checkpoint&)>& move, bool average = false);

 private:
  void tell(const infer::Checkpoint& from, const std::string& out, const infer::Transferred& transferred,
            bool json) const;

  report::BytesProgress progress_;
  double start_;
  train::StopSignals signals_;
  report::LiveLine line_;
};

}  // namespace redline::cli
