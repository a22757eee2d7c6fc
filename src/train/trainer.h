// The loop: batches in, steps, evaluations, checkpoints, until the steps are done, a signal asks to stop, or a number
// is not finite. It never loses what it has saved.
#pragma once

#include "train/options.h"

namespace redline::train {

// A folder that already holds a run is an error without `resume`. A loss or norm that is not finite is a NotFinite.
TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files);

}  // namespace redline::train
