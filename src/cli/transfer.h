// The parts that export and import share: a progress line while weights are written, signals that stop them, and the
// report at the end.
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
  // Opens the model that `checkpoint` names, lets `move` write it into `out`, and reports it. Returns the exit status.
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
