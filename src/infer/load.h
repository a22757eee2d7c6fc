// From a command's --checkpoint argument to a model that runs: where its weights are, what it is, how it was trained.
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

// A run folder (its newest whole checkpoint), a step folder or a Hugging Face folder; else a UserError.
Checkpoint open_checkpoint(FileSystem& files, const Path& argument);

// Does `use` with it: where that finds weights damaged (io::reading_weights), a run's checkpoint before gets its turn.
// `average`: the average of the run's weights instead of them; one that has none is a UserError.
void use_checkpoint(FileSystem& files, const Path& argument, const std::function<void(const Checkpoint&)>& use,
                    bool average = false);

// As open_checkpoint for a folder known to hold config.json and weights.
Checkpoint read_checkpoint(FileSystem& files, const Path& folder);

// The model with its weights.
std::unique_ptr<model::Engine> load_engine(const Checkpoint& checkpoint, const model::LoweringOptions& options,
                                           device::Device& device, const model::LoadProgress& progress = {});

// A UserError when the folder holds fewer weights than config.json describes: what untrusted numbers ask for is
// not allocated.
void check_size(const Checkpoint& checkpoint);

}  // namespace redline::infer
