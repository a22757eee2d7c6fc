// The progress line of eval and sample while they load weights. It appears after a moment, and is gone when the weights
// are there.
#pragma once

#include "model/engine.h"
#include "report/bytes_progress.h"

namespace redline::cli {

class Loading {
 public:
  model::LoadProgress progress() {
    return [this](std::uint64_t done, std::uint64_t of) {
      progress_.show(line_, done, of);
      if (done >= of) line_.clear();
    };
  }

 private:
  report::BytesProgress progress_{"loading weights"};
  report::LiveLine line_{stderr};
};

}  // namespace redline::cli
