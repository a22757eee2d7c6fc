// What export and import show: a line of progress while weights are written, then what was made.
#pragma once

#include <string>

#include "infer/hf_folders.h"
#include "report/live_line.h"

namespace redline::cli {

class Moving {
 public:
  Moving(std::string doing, infer::WriteWeights& options);  // sets the options' progress
  void tell(const infer::Checkpoint& from, const std::string& out, const infer::Moved& moved, bool json);

 private:
  std::string doing_;
  double start_;
  report::LiveLine line_;
};

}  // namespace redline::cli
