// What a run folder allows: a new run in an empty one, the same run going on in its own.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/trainer.h"

namespace redline::train {

inline constexpr const char* kRunConfig = "config.toml";

// A UserError when the folder holds a run and `resume` is off, or when the configuration differs from the run's in a key
// that decides what is trained on what (model, data, batch): such a run would not be the same run. Other differences
// (learning rate, steps, checkpoints, logging) are the user's choice and are told to the observers. A run without its
// config.toml is asked for it when it resumes: each checkpoint holds its own.
void check_folder(const TrainOptions& options, FileSystem& files);

// Goes on from the newest whole checkpoint: `take_up` is given one after the other, newest first, until it returns that
// nothing is wrong with the tensors. Damaged ones are told as warnings. Nothing without `resume` or when the run has saved
// none. A UserError when it has saved some and none can be read: starting over would destroy them.
std::optional<Path> resume_newest(const TrainOptions& options, FileSystem& files,
                                  const std::function<std::string(const Path& folder)>& take_up);

// config.toml as it is resolved now, so that the next resume knows what this one was told.
void write_run_config(const TrainOptions& options, FileSystem& files);

}  // namespace redline::train
