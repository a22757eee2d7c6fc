// Turns a --checkpoint argument into a model that runs: finds its weights, its configuration, its training settings and
// its tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/files.h"
#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
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

// The tokenizer that a checkpoint's model was trained with. No other is taken in its place: its ids would mean nothing
// to the model, and no error would show it.
struct ModelTokenizer {
  std::string name;                                  // as data::open_tokenizer() takes it
  std::shared_ptr<const data::Tokenizer> tokenizer;  // null: the model has none
  std::string why_none;
  std::vector<std::int32_t> beginning = {};  // what the model saw before every text
};

// Looks in the checkpoint's folder, then in its run's and in the run's data, for checkpoints that were saved without a
// tokenizer. `given` (--tokenizer) is for a model that has none, or whose own is lost; beside a tokenizer of the
// model's own it must give the same ids. UserErrors: the model's tokenizer is not found, or `given` is another.
ModelTokenizer tokenizer_of(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

// The same, with a UserError where the model has no tokenizer.
ModelTokenizer require_tokenizer(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

}  // namespace redline::infer
