// train() runs a training until its steps are done, a signal asks to stop, or a number is not finite. It never loses a
// saved checkpoint.
#pragma once

#include "train/options.h"

namespace redline::train {

// A folder that already holds a run is an error without `resume`. A loss or norm that is not finite is a NotFinite.
TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files);

}  // namespace redline::train
