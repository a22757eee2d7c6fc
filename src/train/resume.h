// What a run folder allows: a new run in an empty one, the same run going on in its own.
#pragma once

#include <optional>

#include "train/trainer.h"

namespace redline::train {

inline constexpr const char* kRunConfig = "config.toml";

// A UserError when the folder holds a run and `resume` is off, or when the configuration differs from the run's in a key
// that decides what is trained on what (model, data, batch): such a run would not be the same run. Other differences
// (learning rate, steps, checkpoints, logging) are the user's choice and are told to the observers.
void check_folder(const TrainOptions& options, FileSystem& files);

// The newest whole checkpoint to go on from; damaged newer ones are told as warnings. Nothing without `resume` or when the
// run has saved none. A UserError when it has saved some and none can be read: starting over would destroy them.
std::optional<Path> find_checkpoint(const TrainOptions& options, FileSystem& files);

// config.toml as it is resolved now, so that the next resume knows what this one was told.
void write_run_config(const TrainOptions& options, FileSystem& files);

}  // namespace redline::train
