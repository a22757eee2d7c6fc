// Finds the tokenizer that a checkpoint's model was trained with. No other is taken in its place: its ids would mean
// nothing to the model, and nobody would notice.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "infer/load.h"

namespace redline::infer {

struct ModelTokenizer {
  std::string name;                                  // as data::open_tokenizer() takes it
  std::shared_ptr<const data::Tokenizer> tokenizer;  // null: the model has none
  std::string why_none;
};

// Looks in the checkpoint's folder, then in its run's and in the run's data, for checkpoints that were saved without a
// tokenizer. `given` (--tokenizer) is for a model that has none, or whose own is lost; beside a tokenizer of the
// model's own it must give the same ids. UserErrors: the model's tokenizer is not found, or `given` is another.
ModelTokenizer tokenizer_of(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

// The same, with a UserError where the model has no tokenizer.
ModelTokenizer require_tokenizer(FileSystem& files, const Checkpoint& checkpoint, const std::string& given);

}  // namespace redline::infer
