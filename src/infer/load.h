// Turns a --checkpoint argument into a model that runs: finds its weights, its configuration and its training settings.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/files.h"
#include "config/config.h"
#include "device/device.h"
#include "model/engine.h"

namespace redline::infer {

struct Checkpoint {
  Path folder;  // config.json, and model.safetensors or its shards
  config::Model model;
  std::int64_t max_positions = 0;     // the longest row it was trained on
  std::optional<config::Config> run;  // of a checkpoint of ours; a Hugging Face folder has none
  bool average = false;               // its weights are the average of the run's

  io::WeightFiles weights(FileSystem& files) const;
};

// Opens a run folder (its newest whole checkpoint), a step folder or a Hugging Face folder. Anything else is a
// UserError.
Checkpoint open_checkpoint(FileSystem& files, const Path& argument);

// Calls `use` with the checkpoint. Where `use` finds damaged weights (io::reading_weights), the run's checkpoint before
// it gets its turn. With `average` the average of the run's weights is loaded; a checkpoint without one is a UserError.
void use_checkpoint(FileSystem& files, const Path& argument, const std::function<void(const Checkpoint&)>& use,
                    bool average = false);

// As open_checkpoint for a folder known to hold config.json and weights.
Checkpoint read_checkpoint(FileSystem& files, const Path& folder);

// The model with its weights.
std::unique_ptr<model::Engine> load_engine(const Checkpoint& checkpoint, const model::LoweringOptions& options,
                                           device::Device& device, const model::LoadProgress& progress = {});

// A UserError where the folder holds fewer weights than config.json describes, so that untrusted numbers allocate
// nothing.
void check_size(const Checkpoint& checkpoint);

}  // namespace redline::infer
