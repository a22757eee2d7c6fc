// What a run folder allows: a new run in an empty one, the same run going on in its own.
#pragma once

#include "train/trainer.h"

namespace redline::train {

inline constexpr const char* kRunConfig = "config.toml";

// A UserError when the folder holds a run and `resume` is off, or when the configuration differs from the run's in a
// key that decides what is trained on what (model, data, batch): such a run would not be the same run. Other
// differences (learning rate, steps, checkpoints, logging) are the user's choice and are told to the observers.
void check_folder(const TrainOptions& options, FileSystem& files);

}  // namespace redline::train
